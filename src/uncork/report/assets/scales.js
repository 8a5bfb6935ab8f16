// Axes: from values to places, with ticks that people can read.
import { superscript, whole } from "./text.js";

/** Evenly spaced, from low to high. */
export function linearScale(low, high, length) {
  const span = high - low || 1;
  const step = niceStep(span / Math.max(2, length / 90));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return { at: x => ((x - low) / span) * length, ticks, low, high, text: step >= 1 && Math.max(-low, high) < 1e8 ? inFull : tickText };
}

/** A whole number as text, in full: along an even axis every tick is written alike. */
function inFull(x) {
  return (x < 0 ? "−" : "") + whole(Math.abs(x));
}

function niceStep(rough) {
  const size = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(factor => factor * size).find(step => step >= rough * 0.999) || size * 10;
}

/** Logarithmic on both sides of zero and even within ±threshold: margins span many powers of ten. */
export function signedScale(values, length) {
  let low = Infinity, high = -Infinity;
  const sizes = [];
  for (const x of values) {
    if (!Number.isFinite(x)) continue;
    low = Math.min(low, x);
    high = Math.max(high, x);
    if (x !== 0) sizes.push(Math.abs(x));
  }
  if (low > high) [low, high] = [-1, 1];
  sizes.sort((a, b) => a - b);
  // Not the smallest, which may be a lone value far below the others.
  const small = sizes.length ? sizes[Math.floor(sizes.length * 0.002)] : 1;
  const exponent = Math.floor(Math.log10(Math.max(small, (sizes.at(-1) || 1) * 1e-8)));
  const threshold = 10 ** exponent;
  const squeeze = x => Math.sign(x) * (Math.abs(x) <= threshold ? Math.abs(x) / threshold : 1 + Math.log10(Math.abs(x) / threshold));
  const from = Math.min(squeeze(low), 0), to = Math.max(squeeze(high), 0);
  const padding = (to - from || 1) * 0.04;
  const start = from - padding, span = to - from + 2 * padding || 1;
  const ticks = [0];
  const room = Math.max(2, length / 34), every = Math.max(1, Math.ceil((to - from) / room));
  for (let power = 0; 1 + power <= to; power += every) ticks.push(10 ** (exponent + power));
  for (let power = 0; 1 + power <= -from; power += every) ticks.push(-(10 ** (exponent + power)));
  return { at: x => ((squeeze(x) - start) / span) * length, ticks, low, high, text: tickText };
}

/** Counts of values by bins of equal width on a scale: bins[kind][bin]; `each` says how often a value stands there, once if not. */
export function histogram(values, kinds, kindCount, scale, length, bins, each) {
  const counts = Array.from({ length: kindCount }, () => new Float64Array(bins));
  values.forEach((x, k) => {
    if (!Number.isFinite(x)) return;
    const bin = Math.min(bins - 1, Math.max(0, Math.floor((scale.at(x) / length) * bins)));
    counts[kinds[k]][bin] += each ? each[k] : 1;
  });
  return counts;
}

/** A tick as text: powers of ten where numbers would be long. */
function tickText(x) {
  if (x === 0) return "0";
  const size = Math.abs(x), sign = x < 0 ? "−" : "";
  if (size >= 0.001 && size < 100000) return sign + Number(size.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });
  const power = Math.floor(Math.log10(size) + 1e-9), digits = Number((size / 10 ** power).toPrecision(3));
  return sign + (digits === 1 ? "" : digits + "·") + "10" + superscript(power);
}
