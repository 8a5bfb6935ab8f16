// All audits: filter, sort, choose two to compare.
import { fillFromAddress, inAddress, orderInAddress, orderText, putInAddress } from "/assets/address.js";
import { element, labelNode, percent, whole } from "/assets/text.js";
import { cell, domainNode, failed, get, link, start, when } from "./api.js";
import { ask } from "./ask.js";
import { places } from "./places.js";

const COLUMNS = [
  ["", ""], ["name", "model"], ["classes", "classes", "number"], ["features", "features", "number spare"],
  ["unargmaxable", "never first", "number"], ["share", "share", "number optional"], ["tied", "tied", "number spare"],
  ["undecided", "undecided", "number spare"], [null, "inputs", "spare"], ["created", "audited (UTC)", "spare"],
];
const COMPARED = { cosine: "compared by cosine", euclidean: "compared by Euclidean distance" };
const PAGE = 100;
const chosen = new Set();
const NEWEST = ["created", -1];
let order = orderInAddress(COLUMNS.map(([key]) => key).filter(Boolean), NEWEST), offset = 0, asked = 0;

function header() {
  const line = element("tr");
  for (const [key, title, className] of COLUMNS) {
    const place = element("th", className || "");
    place.scope = "col";
    if (key) {
      const button = element("button", "", title);
      button.type = "button";
      if (order[0] === key) place.setAttribute("aria-sort", order[1] < 0 ? "descending" : "ascending");
      button.addEventListener("click", () => {
        order = [key, order[0] === key ? -order[1] : key === "name" ? 1 : -1];
        load();
      });
      place.append(button);
    } else if (title) place.textContent = title;
    else place.append(element("span", "sr-only", "compare"));
    line.append(place);
  }
  get("audits").tHead.replaceChildren(line);
}

function row(audit) {
  const line = element("tr"), box = element("input");
  box.type = "checkbox";
  box.checked = chosen.has(audit.id);
  box.setAttribute("aria-label", `compare audit ${audit.id}`);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(audit.id);
    else chosen.delete(audit.id);
    get("compare").disabled = chosen.size !== 2;
  });
  const name = link(places.audit(audit.id), labelNode(audit.name, 60));
  const sub = element("span", "sub");
  sub.append(...(audit.group ? [labelNode(audit.group, 40), ", "] : []), `audit ${audit.id}, ${COMPARED[audit.metric] || (audit.has_bias ? "with bias" : "no bias")}`);
  const narrow = element("span", "sub narrow");
  narrow.append(domainNode(audit.domain), ", ", element("span", "when", when(audit.created)));
  if (audit.weight) sub.append(", ", labelNode(audit.weight, 60));
  const doubts = audit.doubts.map(text => {
    const doubt = element("span", "sub doubt", "careful: ");
    doubt.append(labelNode(text, 160));
    return doubt;
  });
  const share = audit.asked ? audit.unargmaxable / audit.asked : 0, gauge = element("span", "gauge"), part = element("i");
  part.style.width = 100 * share + "%";
  gauge.append(part);
  gauge.setAttribute("aria-hidden", "true");
  line.append(
    cell(box), cell([name, sub, narrow, ...doubts], "text"), cell(whole(audit.asked), "number"), cell(whole(audit.features), "number spare"),
    cell(element("span", audit.unargmaxable ? "lost" : "", whole(audit.unargmaxable)), "number"), cell([percent(share), gauge], "number optional"),
    cell(whole(audit.tied), "number spare"), cell(whole(audit.undecided), "number spare"),
    cell(domainNode(audit.domain), "spare domain"), cell(when(audit.created), "spare when"),
  );
  return line;
}

async function load(more = false) {
  const mine = ++asked;
  if (!more) offset = 0;
  header();
  const name = get("name").value.trim(), group = get("group").value;
  const sort = orderText(order);
  if (!more) putInAddress({ name, group, sort: sort === orderText(NEWEST) ? "" : sort });
  try {
    const page = await ask("/api/audits", {
      name, group, sort: order[0], descending: order[1] < 0, limit: PAGE, offset,
    });
    if (mine !== asked) return; // an answer that was overtaken
    const body = get("audits").tBodies[0];
    if (!more) body.replaceChildren();
    body.append(...page.items.map(row));
    offset = page.next_offset;
    get("more").hidden = offset === null;
    get("found").textContent = page.total === 1 ? "1 audit" : `${whole(page.total)} audits`;
  } catch (error) {
    failed(get("audits").tBodies[0], error);
  }
}

async function groups() {
  const { items } = await ask("/api/groups");
  if (!items.length) return;
  for (const name of ["", ...items]) {
    const option = element("option", "", name || "every group");
    option.value = name;
    get("group").append(option);
  }
  get("group-choice").hidden = false;
  if (items.includes(inAddress("group"))) get("group").value = inAddress("group");
}

async function failures() {
  const { items } = await ask("/api/failures");
  if (!items.length) return;
  const body = get("failures").querySelector("tbody");
  for (const failure of items) {
    const line = element("tr");
    line.append(cell(labelNode(failure.name, 80), "text"), cell(labelNode(failure.error, 400), "text"));
    body.append(line);
  }
  get("failures").hidden = false;
}

start();
let typing = 0;
get("name").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(load, 120);
});
get("group").addEventListener("change", () => load());
get("filter").addEventListener("submit", event => event.preventDefault());
get("more").addEventListener("click", () => load(true));
get("compare").addEventListener("click", () => {
  const [before, after] = [...chosen].sort((a, b) => a - b);
  location.href = places.compare(before, after);
});
fillFromAddress(get("name"), "name");
groups().catch(() => {}).then(() => load()); // a group of the address must be there to be chosen
failures().catch(() => {});
