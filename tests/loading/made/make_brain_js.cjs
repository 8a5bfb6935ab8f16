// Writes the brain.js networks that tests read: node make_brain_js.cjs VERSION PATH_OF_BROWSER_JS
// with brain.js 1.6.1 (browser.js) and 2.0.0-beta.24 (dist/browser.js), beside what each computes.
const fs = require("fs");
const path = require("path");
const [version, library] = process.argv.slice(2);
global.window = global.self = global;
const found = require(path.resolve(library));
const brain = found.NeuralNetwork ? found : global.brain;
const colours = { red: [1, 0, 0], green: [0, 1, 0], blue: [0, 0, 1], white: [1, 1, 1], black: [0, 0, 0] };
const data = Object.entries(colours).map(([name, [r, g, b]]) => ({ input: { r, g, b }, output: { [name]: 1 } }));
for (const activation of ["sigmoid", "tanh", ...(version === "1" ? [] : ["leaky-relu"])]) {
  const net = new brain.NeuralNetwork({ hiddenLayers: [6, 4], activation });
  net.train(data, { iterations: 200 });
  const runs = data.map(({ input }) => ({ input, output: net.run(input) }));
  const file = path.join(__dirname, "brain_js", `${version}-${activation}`);
  fs.writeFileSync(`${file}.json`, JSON.stringify(net.toJSON()));
  fs.writeFileSync(`${file}.runs`, JSON.stringify(runs));
}
