module {
func.func @kernel(%buffers: !llvm.ptr, %dims: !llvm.ptr, %task_begin: i64, %task_end: i64, %scratch: !llvm.ptr) {
  %pointer0_slot = llvm.getelementptr %buffers[0] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
  %pointer0 = llvm.load %pointer0_slot : !llvm.ptr -> !llvm.ptr
  %pointer1_slot = llvm.getelementptr %buffers[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
  %pointer1 = llvm.load %pointer1_slot : !llvm.ptr -> !llvm.ptr
  %pointer2_slot = llvm.getelementptr %buffers[2] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
  %pointer2 = llvm.load %pointer2_slot : !llvm.ptr -> !llvm.ptr
  %pointer3_slot = llvm.getelementptr %buffers[3] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
  %pointer3 = llvm.load %pointer3_slot : !llvm.ptr -> !llvm.ptr
    %v1 = arith.constant -1 : i64
    %v2 = arith.constant 1 : i64
    scf.for %v3 = %task_begin to %task_end step %v2 : i64 {
      %v4 = arith.constant 2 : i64
      %v5 = arith.muli %v3, %v4 : i64
      %v6 = arith.constant 3 : i64
      %v7 = arith.muli %v5, %v6 : i64
      %v8 = llvm.getelementptr %pointer0[%v7] : (!llvm.ptr, i64) -> !llvm.ptr, f32
      %v9 = arith.constant dense<0x00000000> : vector<16xf32>
      %v10 = llvm.load %pointer1 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v11 = llvm.load %v8 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v12 = vector.broadcast %v11 : f32 to vector<16xf32>
      %v13 = math.fma %v12, %v10, %v9 : vector<16xf32>
      %v14 = llvm.getelementptr %v8[3] : (!llvm.ptr) -> !llvm.ptr, f32
      %v15 = llvm.load %v14 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v16 = vector.broadcast %v15 : f32 to vector<16xf32>
      %v17 = math.fma %v16, %v10, %v9 : vector<16xf32>
      %v18 = llvm.getelementptr %pointer1[16] : (!llvm.ptr) -> !llvm.ptr, f32
      %v19 = llvm.load %v18 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v20 = llvm.getelementptr %v8[1] : (!llvm.ptr) -> !llvm.ptr, f32
      %v21 = llvm.load %v20 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v22 = vector.broadcast %v21 : f32 to vector<16xf32>
      %v23 = math.fma %v22, %v19, %v9 : vector<16xf32>
      %v24 = llvm.getelementptr %v8[4] : (!llvm.ptr) -> !llvm.ptr, f32
      %v25 = llvm.load %v24 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v26 = vector.broadcast %v25 : f32 to vector<16xf32>
      %v27 = math.fma %v26, %v19, %v9 : vector<16xf32>
      %v28 = llvm.getelementptr %pointer1[32] : (!llvm.ptr) -> !llvm.ptr, f32
      %v29 = llvm.load %v28 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v30 = llvm.getelementptr %v8[2] : (!llvm.ptr) -> !llvm.ptr, f32
      %v31 = llvm.load %v30 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v32 = vector.broadcast %v31 : f32 to vector<16xf32>
      %v33 = math.fma %v32, %v29, %v9 : vector<16xf32>
      %v34 = llvm.getelementptr %v8[5] : (!llvm.ptr) -> !llvm.ptr, f32
      %v35 = llvm.load %v34 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v36 = vector.broadcast %v35 : f32 to vector<16xf32>
      %v37 = math.fma %v36, %v29, %v9 : vector<16xf32>
      %v38 = llvm.getelementptr %v8[3] : (!llvm.ptr) -> !llvm.ptr, f32
      %v39 = llvm.getelementptr %pointer1[48] : (!llvm.ptr) -> !llvm.ptr, f32
      %v40 = arith.addf %v13, %v23 : vector<16xf32>
      %v41 = arith.addf %v17, %v27 : vector<16xf32>
      %v42 = arith.addf %v40, %v33 : vector<16xf32>
      %v43 = arith.addf %v41, %v37 : vector<16xf32>
      %v44 = arith.constant 16 : i64
      %v45 = arith.muli %v5, %v44 : i64
      %v46 = llvm.getelementptr %pointer3[%v45] : (!llvm.ptr, i64) -> !llvm.ptr, f32
      %v47 = llvm.load %pointer2 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v48 = arith.addf %v42, %v47 : vector<16xf32>
      %v49 = arith.constant dense<0x00000000> : vector<16xf32>
      %v50 = arith.maximumf %v48, %v49 : vector<16xf32>
      llvm.store %v50, %v46 {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
      %v51 = arith.addf %v43, %v47 : vector<16xf32>
      %v52 = arith.constant dense<0x00000000> : vector<16xf32>
      %v53 = arith.maximumf %v51, %v52 : vector<16xf32>
      %v54 = llvm.getelementptr %v46[16] : (!llvm.ptr) -> !llvm.ptr, f32
      llvm.store %v53, %v54 {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
    }
  return
}
}
