// All label audits.
import { fillFromAddress, putInAddress } from "/assets/address.js";
import { element, labelNode, whole } from "/assets/text.js";
import { cell, domainNode, failed, get, header, link, start, when } from "./api.js";
import { ask } from "./ask.js";
import { places } from "./places.js";

const PAGE = 100;
let offset = 0, asked = 0;

function row(audit) {
  const line = element("tr"), sub = element("span", "sub", `label audit ${audit.id}, ${whole(audit.labels)} labels × ${whole(audit.features)} features`);
  const narrow = element("span", "sub narrow");
  narrow.append(domainNode(audit.domain), ", ", element("span", "when", when(audit.created)));
  const doubts = audit.doubts.map(text => {
    const doubt = element("span", "sub doubt", "careful: ");
    doubt.append(labelNode(text, 160));
    return doubt;
  });
  line.append(
    cell([link(places.labelAudit(audit.id), labelNode(audit.name, 60)), sub, narrow, ...doubts], "text"), cell(whole(audit.sets), "number"),
    cell(element("span", audit.infeasible ? "lost" : "", whole(audit.infeasible)), "number"), cell(whole(audit.feasible), "number optional"),
    cell(whole(audit.undecided), "number optional"), cell(domainNode(audit.domain), "spare domain"), cell(when(audit.created), "spare when"),
  );
  return line;
}

async function load(more = false) {
  const mine = ++asked;
  const name = get("name").value.trim();
  if (!more) offset = 0;
  if (!more) putInAddress({ name });
  try {
    const page = await ask("/api/label-audits", { name, limit: PAGE, offset });
    if (mine !== asked) return; // an answer that was overtaken
    const body = get("audits").tBodies[0];
    if (!more) body.replaceChildren();
    body.append(...page.items.map(row));
    offset = page.next_offset;
    get("more").hidden = offset === null;
    get("none").hidden = page.total > 0;
    get("found").textContent = page.total === 1 ? "1 label audit" : `${whole(page.total)} label audits`;
  } catch (error) {
    failed(get("audits").tBodies[0], error);
  }
}

start();
get("audits").tHead.append(header([
  ["model"], ["sets", "number"], ["infeasible", "number"], ["feasible", "number optional"], ["undecided", "number optional"],
  ["inputs", "spare"], ["decided (UTC)", "spare"],
]));
let typing = 0;
get("name").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(load, 120);
});
get("filter").addEventListener("submit", event => event.preventDefault());
get("more").addEventListener("click", () => load(true));
fillFromAddress(get("name"), "name");
load();
