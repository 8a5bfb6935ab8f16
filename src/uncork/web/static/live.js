// A report that is served: the panel of a class asks for its proof and its nearest rows.
import { ask, get } from "./api.js";
import { nearestNodes, proofNodes } from "./proof.js";

const [, audit] = document.body.dataset.live.match(/\/audits\/(\d+)$/);

async function complete() {
  const { id, place } = get("detail").shown;
  try {
    const detail = await ask(`/api/audits/${audit}/classes/${id}`);
    if (!place.isConnected) return; // another class was opened meanwhile
    const nodes = [...(detail.verdict === "unargmaxable" ? [] : proofNodes(detail)), ...nearestNodes(detail)];
    place.replaceChildren(...nodes);
  } catch {
    place.replaceChildren();
  }
}

get("detail").addEventListener("uncork-shown", complete);
if (get("detail").shown) complete(); // opened by the address, before this script was there
