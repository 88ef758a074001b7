#!/usr/bin/env bash
# From nothing to a verified artifact: captures a ResNet-50 in three ways, compiles, runs, checks parity, prints times.
# Needs Python 3.11 or newer and a C++17 compiler; writes into demo/ beside this folder. Takes a few minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

bash tools/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
export HF_HUB_OFFLINE=1
mkdir -p demo

echo "== 1. write one ResNet-50 (seeded random weights) in three forms"
python tools/bench/export_forms.py tools/bench/models.py:resnet50 --folder demo --name resnet50

for form in pt2 pt onnx; do
    echo "== 2. compile resnet50.$form"
    lowerkit compile "demo/resnet50.$form" --input x:1x3x224x224:f32 -o "demo/resnet50-$form.lk"
    echo "== 3. run it"
    lowerkit run "demo/resnet50-$form.lk" --input x=@demo/x.npy -o "demo/out-$form"
    echo "== 4. prove the artifact again"
    lowerkit verify "demo/resnet50-$form.lk"
done

echo "== 5. parity with eager PyTorch, op by op"
lowerkit check demo/resnet50.pt2 --input x=@demo/x.npy

echo "== 6. times beside the peers, interleaved"
lowerkit bench tools/bench/models.py:resnet50 --peers eager,onnxruntime,openvino --dtype f32 --seconds 10
