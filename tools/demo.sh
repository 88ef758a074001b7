#!/usr/bin/env bash
# From nothing to a verified artifact: writes a ResNet-50 in three forms; compiles, runs and verifies each of them;
# checks parity with eager op by op; prints times beside the peers. Prints every command before it runs.
# Needs Python 3.11 or newer and a C++17 compiler; writes into demo/ in this checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh

begun="$(tenths)"
bash tools/setup.sh demo
installing="$(seconds_since "$begun")"
export PATH="$PWD/.venv/bin:$PATH"
mkdir -p demo

begun="$(tenths)"
echo
echo "== 1. write one ResNet-50 (seeded random weights) in three forms"
shown python tools/bench/export_forms.py tools/demo/resnet50.py:model --folder demo --name resnet50

for form in pt2 pt onnx; do
    echo
    echo "== 2. compile resnet50.$form, run the artifact, and prove it again from the values stored in it"
    shown lowerkit compile "demo/resnet50.$form" --input x:1x3x224x224:f32 -o "demo/resnet50-$form.lk"
    shown lowerkit run "demo/resnet50-$form.lk" --input x=@demo/x.npy -o "demo/out-$form"
    shown lowerkit verify "demo/resnet50-$form.lk"
done

echo
echo "== 3. parity with eager PyTorch, op by op"
shown lowerkit check demo/resnet50.pt2 --input x=@demo/x.npy

echo
echo "== 4. times beside the peers, interleaved"
shown lowerkit bench tools/demo/resnet50.py:model --peers eager,onnxruntime,openvino --dtype f32 --seconds 2

echo
echo "demo complete: installing took $installing, the steps $(seconds_since "$begun")"
