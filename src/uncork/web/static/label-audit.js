// One label audit: its counts, and its sets, searched and in pages.
import { fillFromAddress, inAddress, putInAddress } from "/assets/address.js";
import { element, short, whole } from "/assets/text.js";
import { cell, domainNode, failed, get, header, link, start, verdictNode, when } from "./api.js";
import { ask } from "./ask.js";
import { setNodes } from "./label-names.js";
import { places } from "./places.js";

const page = JSON.parse(document.body.dataset.page), api = "/api/label-audits/" + page.audit;
const PAGE = 100;
let offset = 0, asked = 0;

function row(set) {
  const line = element("tr"), name = link(places.labelSet(page.audit, set.set), ...setNodes(set));
  const reason = set.reason ? [element("span", "sub", set.reason)] : [];
  line.append(
    cell([name, ...reason], "text"), cell(verdictNode(set.verdict)), cell(whole(set.count), "number optional"),
    cell(set.margin === null ? "" : short(set.margin), "number optional"),
  );
  return line;
}

async function load(more = false) {
  const mine = ++asked;
  const search = get("search").value.trim(), verdict = get("verdict").value;
  if (!more) offset = 0;
  if (!more) putInAddress({ search, verdict });
  try {
    const found = await ask(api + "/sets", { search, verdict, limit: PAGE, offset });
    if (mine !== asked) return; // an answer that was overtaken
    const body = get("sets").tBodies[0];
    if (!more) body.replaceChildren();
    body.append(...found.items.map(row));
    offset = found.next_offset;
    get("more").hidden = offset === null;
    get("found").textContent = found.total === 1 ? "1 set" : `${whole(found.total)} sets`;
  } catch (error) {
    failed(get("sets").tBodies[0], error);
  }
}

async function describe() {
  const audit = await ask(api), alike = typeof audit.thresholds === "number";
  const lead = get("lead");
  lead.replaceChildren(`${whole(audit.labels)} labels × ${whole(audit.features)} features, inputs `, domainNode(audit.domain));
  lead.append(`; a label is predicted where its logit is above ${alike ? short(audit.thresholds) : "its own threshold"}. Decided ${when(audit.created)} (UTC).`);
  const words = { infeasible: "no input gives them", feasible: "some input gives them", undecided: "not proven either way" };
  for (const [verdict, meaning] of Object.entries(words)) {
    const tile = element("div", "tile");
    tile.append(element("b", verdict === "infeasible" && audit[verdict] ? "lost" : "", whole(audit[verdict])), element("span", "", `${verdict}: ${meaning}`));
    get("counts").append(tile);
  }
}

start();
get("sets").tHead.append(header([["labels that are on"], ["verdict"], ["times", "number optional"], ["margin", "number optional"]]));
let typing = 0;
get("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(load, 120);
});
get("verdict").addEventListener("change", () => load());
get("filter").addEventListener("submit", event => event.preventDefault());
get("more").addEventListener("click", () => load(true));
fillFromAddress(get("search"), "search");
const wanted = [...get("verdict").options].find(option => option.value === inAddress("verdict"));
if (wanted) get("verdict").value = wanted.value;
load();
describe().catch(error => failed(get("counts"), error));
