// Writes the TensorFlow.js models that tests read, with @tensorflow/tfjs 4.22.0 beside this file or
// above it: `node make_tensorflow_js.mjs`. Each lies beside what the library itself computes with
// it: the inputs of the last layer (x) and its logits (z).

import fs from 'node:fs';
import path from 'node:path';
import {fileURLToPath} from 'node:url';

const tf = await import(process.argv[2] || '@tensorflow/tfjs').then((found) => found.default || found);
await tf.setBackend('cpu');
const here = path.join(path.dirname(fileURLToPath(import.meta.url)), 'tensorflow_js');
fs.rmSync(here, {recursive: true, force: true});

function write(name, files, computed) {
  const folder = path.join(here, name);
  fs.mkdirSync(folder, {recursive: true});
  for (const [file, data] of Object.entries(files)) fs.writeFileSync(path.join(folder, file), data);
  fs.writeFileSync(path.join(folder, 'computed.json'), JSON.stringify(computed));
}

// Keras's layers, saved by the library, in two files of weights.
const layers = tf.sequential({layers: [
  tf.layers.conv2d({inputShape: [6, 6, 2], filters: 4, kernelSize: 3, activation: 'relu', kernelInitializer: tf.initializers.glorotNormal({seed: 1}), biasInitializer: tf.initializers.randomNormal({seed: 2})}),
  tf.layers.globalAveragePooling2d({dataFormat: 'channelsLast'}),
  tf.layers.dense({units: 5, activation: 'tanh', kernelInitializer: tf.initializers.glorotNormal({seed: 3})}),
  tf.layers.dense({units: 7, name: 'last', kernelInitializer: tf.initializers.randomNormal({seed: 4, stddev: 1}), biasInitializer: tf.initializers.randomNormal({seed: 5, stddev: 1})}),
  tf.layers.activation({activation: 'softmax'}),
]});
const images = tf.randomNormal([3, 6, 6, 2], 0, 1, 'float32', 6);
const inner = tf.model({inputs: layers.inputs, outputs: [layers.layers[2].output, layers.layers[3].output]});
const [x, z] = inner.predict(images);
await layers.save(tf.io.withSaveHandler(async (saved) => {
  const bytes = Buffer.from(saved.weightData);
  const half = 300;
  write('layers', {
    'model.json': JSON.stringify({format: 'layers-model', generatedBy: saved.generatedBy, convertedBy: null,
      modelTopology: saved.modelTopology,
      weightsManifest: [{paths: ['group1-shard1of2.bin', 'group1-shard2of2.bin'], weights: saved.weightSpecs}]}),
    'group1-shard1of2.bin': bytes.subarray(0, half), 'group1-shard2of2.bin': bytes.subarray(half),
    'metadata.json': JSON.stringify({labels: ['a', 'b', 'c', 'd', 'e', 'f', 'g']}),
  }, {x: x.arraySync(), z: z.arraySync()});
  return {modelArtifactsInfo: {dateSaved: new Date(0), modelTopologyType: 'JSON'}};
}));

// Graphs with fused ops and weights as codes, as the converter writes them, run by the library.
const text = (value) => Buffer.from(value).toString('base64');
const float = {T: {type: 'DT_FLOAT'}};
const constant = (name, shape) => ({name, op: 'Const', attr: {dtype: {type: 'DT_FLOAT'}, value: {tensor: {dtype: 'DT_FLOAT', tensorShape: {dim: shape.map((n) => ({size: String(n)}))}}}}});

async function graph(name, codes) {
  const specs = [['filters', [3, 3, 2, 4]], ['offset', [4]], ['kernel', [4, 6]], ['bias', [6]]];
  const parts = [], weights = [];
  for (const [place, [weight, shape]] of specs.entries()) {
    const values = tf.randomNormal(shape, 0, 1, 'float32', 10 + place).dataSync();
    const entry = {name: weight, shape, dtype: 'float32'};
    if (codes === 'float16') {
      const half = new Uint16Array(values.map((v) => 0x3800 + 16 * Math.floor(Math.abs(v) * 20) + (v < 0 ? 0x8000 : 0)));
      parts.push(Buffer.from(half.buffer));
      entry.quantization = {dtype: 'float16', original_dtype: 'float32'};
    } else {
      const least = Math.min(...values), most = Math.max(...values);
      const steps = codes === 'uint8' ? 255 : 65535;
      const scale = (most - least) / steps;
      const stored = (codes === 'uint8' ? Uint8Array : Uint16Array).from(values, (v) => Math.round((v - least) / scale));
      parts.push(Buffer.from(stored.buffer));
      entry.quantization = {dtype: codes, scale, min: least, original_dtype: 'float32'};
    }
    weights.push(entry);
  }
  const axes = Buffer.from(new Int32Array([1, 2]).buffer);
  parts.push(axes);
  weights.push({name: 'axes', shape: [2], dtype: 'int32'});
  const node = [
    {name: 'x', op: 'Placeholder', attr: {dtype: {type: 'DT_FLOAT'}, shape: {shape: {dim: [{size: '-1'}, {size: '6'}, {size: '6'}, {size: '2'}]}}}},
    ...specs.map(([weight, shape]) => constant(weight, shape)),
    {name: 'axes', op: 'Const', attr: {dtype: {type: 'DT_INT32'}, value: {tensor: {dtype: 'DT_INT32', tensorShape: {dim: [{size: '2'}]}}}}},
    {name: 'seen', op: '_FusedConv2D', input: ['x', 'filters', 'offset'], attr: {...float, strides: {list: {i: ['1', '2', '2', '1']}}, padding: {s: text('SAME')}, data_format: {s: text('NHWC')}, dilations: {list: {i: ['1', '1', '1', '1']}}, num_args: {i: '1'}, fused_ops: {list: {s: [text('BiasAdd'), text('Relu6')]}}, epsilon: {f: 0}}},
    {name: 'features', op: 'Mean', input: ['seen', 'axes'], attr: {...float, Tidx: {type: 'DT_INT32'}, keep_dims: {b: false}}},
    {name: 'logits', op: '_FusedMatMul', input: ['features', 'kernel', 'bias'], attr: {...float, transpose_a: {b: false}, transpose_b: {b: false}, num_args: {i: '1'}, fused_ops: {list: {s: [text('BiasAdd')]}}, epsilon: {f: 0}}},
    {name: 'answer', op: 'Softmax', input: ['logits'], attr: float},
  ];
  const model = {format: 'graph-model', generatedBy: '2.21.0', convertedBy: 'by hand', modelTopology: {node, library: {}, versions: {producer: 1}},
    signature: {inputs: {x: {name: 'x:0', dtype: 'DT_FLOAT'}}, outputs: {answer: {name: 'answer:0', dtype: 'DT_FLOAT'}}},
    weightsManifest: [{paths: ['group1-shard1of1.bin'], weights}]};
  const bytes = Buffer.concat(parts);
  const loaded = await tf.loadGraphModel(tf.io.fromMemory({modelTopology: model.modelTopology, weightSpecs: weights,
    weightData: bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length), format: 'graph-model', signature: model.signature}));
  const [features, logits] = loaded.execute({x: images}, ['features', 'logits']);
  write(name, {'model.json': JSON.stringify(model), 'group1-shard1of1.bin': bytes}, {x: features.arraySync(), z: logits.arraySync()});
}
for (const codes of ['uint8', 'uint16', 'float16']) await graph(`graph-${codes}`, codes);
