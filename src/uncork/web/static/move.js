// "Move its row and see": a class decided by the server as if its bias or its row's length were others.
import { inAddress, putInAddress } from "/assets/address.js";
import { element, percent, short } from "/assets/text.js";
import { verdictNode } from "./api.js";
import { ask } from "./ask.js";
import { classList } from "./proof.js";

const STEPS = 400; // of a slider, on each side of its middle
const LONGEST = 4; // times as long, at the slider's end

/** A number that is nice to read, and at least so large. */
function nice(size) {
  const power = 10 ** Math.floor(Math.log10(size));
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= size) ?? size;
}

/** A slider with a field beside it: both say the same number. `toValue` and `toPlace` turn one into the other. */
function control(name, title, { toValue, toPlace, least, most }, changed) {
  const row = element("div", "move-control"), label = element("label", "", title), slider = element("input"), field = element("input");
  slider.type = "range";
  slider.min = -STEPS;
  slider.max = STEPS;
  slider.step = 1;
  slider.id = "move-" + name;
  label.htmlFor = slider.id;
  field.type = "number";
  field.step = "any";
  field.min = least;
  field.max = most;
  field.id = `move-${name}-field`;
  field.setAttribute("aria-label", title);
  const made = { row, value: toValue(0) };
  made.set = (value, from) => {
    made.value = value;
    if (from !== slider) slider.value = String(Math.max(-STEPS, Math.min(STEPS, Math.round(toPlace(value)))));
    if (from !== field) field.value = String(value);
    slider.setAttribute("aria-valuetext", short(value));
  };
  slider.addEventListener("input", () => {
    made.set(Number(toValue(Number(slider.value)).toPrecision(4)), slider);
    changed();
  });
  field.addEventListener("input", () => {
    if (!field.checkValidity() || field.value === "") return;
    made.set(Number(field.value), field);
    changed();
  });
  row.append(label, slider, field);
  return made;
}

function finite(text, otherwise, least, most) {
  const value = text === "" ? NaN : Number(text);
  return Number.isFinite(value) && value >= least && value <= most ? value : otherwise;
}

/** Fill a section with the sliders of a class. */
export async function moving(section, page) {
  const path = `/api/audits/${page.audit}/classes/${page.class}/moved`;
  section.append(element("h2", "", "Move its row and see"));
  const about = element("p", "soft", "How would it be if its bias or the length of its row were another? Each answer is a new proof about the changed head; " +
    "nothing is stored, and what it would do to other classes is not asked.");
  section.append(about);
  let first;
  try {
    first = await ask(path);
  } catch (error) {
    about.textContent = `It cannot be moved here: ${error.message}.`;
    return;
  }
  if (first.weights) {
    about.textContent = `Moving its row needs the weights: ${first.weights}.`;
    return;
  }
  const room = nice(Math.max(first.room, 2 * Math.abs(first.margin ?? 0)));
  // Finer near the middle, where most classes turn.
  const bias = control("bias", page.bias ? "add to its bias" : "give it a bias of", {
    toValue: place => Math.sign(place) * room * (Math.abs(place) / STEPS) ** 2,
    toPlace: value => Math.sign(value) * STEPS * Math.sqrt(Math.abs(value) / room),
    least: -1e30, most: 1e30,
  }, changed);
  const length = control("length", "times its length", {
    toValue: place => LONGEST ** (place / STEPS),
    toPlace: value => (value > 0 ? (STEPS * Math.log(value)) / Math.log(LONGEST) : -STEPS),
    least: 0, most: 1000,
  }, changed);
  const now = element("p", "soft move-now"), answer = element("div", "move-answer"), line = element("p", "statement"), proof = element("div");
  const back = element("button", "quiet", "Back to how it is"), buttons = element("p", "move-buttons");
  back.type = "button";
  back.addEventListener("click", () => set(0, 1));
  buttons.append(back);
  line.setAttribute("role", "status");
  answer.append(line, proof);
  section.append(bias.row, length.row, now, buttons, answer);

  let waiting = false, again = false, typing = 0;

  function set(added, times) {
    bias.set(added);
    length.set(times);
    changed();
  }

  function changed() {
    back.disabled = bias.value === 0 && length.value === 1;
    putInAddress({ bias: bias.value || "", length: length.value === 1 ? "" : length.value });
    clearTimeout(typing);
    typing = setTimeout(decide, 60);
  }

  /** One question at a time; what was chosen meanwhile is the next. */
  async function decide() {
    again = waiting;
    if (waiting) return;
    waiting = true;
    answer.setAttribute("aria-busy", "true");
    try {
      show(await ask(path, { bias: bias.value, length: length.value }));
    } catch (error) {
      line.textContent = `This could not be decided: ${error.message}.`;
      proof.replaceChildren();
    }
    waiting = false;
    if (again) decide();
    else answer.removeAttribute("aria-busy");
  }

  function show(found) {
    if (found.weights) {
      line.textContent = `This could not be decided: ${found.weights}.`;
      proof.replaceChildren();
      return;
    }
    const sign = bias.value < 0 ? "−" : "+";
    now.textContent = `Bias ${short(first.bias)} ${sign} ${short(Math.abs(bias.value))} = ${short(found.bias)}; length ${short(first.row_length)} × ${short(length.value)} = ${short(found.row_length)}.`;
    const margin = found.margin === null ? "" : found.verdict === "unargmaxable" ? `, always behind by at least ${short(Math.abs(found.margin))}` : `, ahead by at least ${short(found.margin)} somewhere`;
    const unmoved = bias.value === 0 && length.value === 1;
    line.replaceChildren(unmoved ? "As it is: " : found.verdict === first.verdict ? "Still " : "Now ", verdictNode(found.verdict), found.verdict === "tied" || found.verdict === "undecided" ? "" : margin, ".");
    const nodes = [element("p", "soft", `${found.text} It took ${found.seconds.toFixed(2)} s.`)];
    if (found.mixture) nodes.push(element("h3", "", "The mixture that beats it then"), classList(page.audit, found.mixture.parts.slice(0, 5), part => part.share, percent, "unargmaxable"));
    else if (found.runners_up?.length) nodes.push(element("h3", "", "Next in line where it wins then"), classList(page.audit, found.runners_up.slice(0, 5), entry => entry.lead, short, "argmaxable"));
    proof.replaceChildren(...nodes);
  }

  bias.set(finite(inAddress("bias"), 0, -1e30, 1e30));
  length.set(finite(inAddress("length"), 1, 0, 1000));
  back.disabled = bias.value === 0 && length.value === 1;
  if (back.disabled) show(first);
  else await decide();
}
