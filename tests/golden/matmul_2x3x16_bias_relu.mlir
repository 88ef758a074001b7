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
      %v9 = arith.constant 16 : i64
      %v10 = arith.muli %v5, %v9 : i64
      %v11 = llvm.getelementptr %pointer3[%v10] : (!llvm.ptr, i64) -> !llvm.ptr, f32
      %v12 = arith.constant dense<0x00000000> : vector<16xf32>
      %v13 = llvm.load %pointer1 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v14 = llvm.load %v8 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v15 = vector.broadcast %v14 : f32 to vector<16xf32>
      %v16 = math.fma %v15, %v13, %v12 : vector<16xf32>
      %v17 = llvm.getelementptr %v8[3] : (!llvm.ptr) -> !llvm.ptr, f32
      %v18 = llvm.load %v17 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v19 = vector.broadcast %v18 : f32 to vector<16xf32>
      %v20 = math.fma %v19, %v13, %v12 : vector<16xf32>
      %v21 = llvm.getelementptr %pointer1[16] : (!llvm.ptr) -> !llvm.ptr, f32
      %v22 = llvm.load %v21 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v23 = llvm.getelementptr %v8[1] : (!llvm.ptr) -> !llvm.ptr, f32
      %v24 = llvm.load %v23 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v25 = vector.broadcast %v24 : f32 to vector<16xf32>
      %v26 = math.fma %v25, %v22, %v12 : vector<16xf32>
      %v27 = llvm.getelementptr %v8[4] : (!llvm.ptr) -> !llvm.ptr, f32
      %v28 = llvm.load %v27 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v29 = vector.broadcast %v28 : f32 to vector<16xf32>
      %v30 = math.fma %v29, %v22, %v12 : vector<16xf32>
      %v31 = llvm.getelementptr %pointer1[32] : (!llvm.ptr) -> !llvm.ptr, f32
      %v32 = llvm.load %v31 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v33 = llvm.getelementptr %v8[2] : (!llvm.ptr) -> !llvm.ptr, f32
      %v34 = llvm.load %v33 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v35 = vector.broadcast %v34 : f32 to vector<16xf32>
      %v36 = math.fma %v35, %v32, %v12 : vector<16xf32>
      %v37 = llvm.getelementptr %v8[5] : (!llvm.ptr) -> !llvm.ptr, f32
      %v38 = llvm.load %v37 {alignment = 4 : i64} : !llvm.ptr -> f32
      %v39 = vector.broadcast %v38 : f32 to vector<16xf32>
      %v40 = math.fma %v39, %v32, %v12 : vector<16xf32>
      "llvm.intr.prefetch"(%v11) <{cache = 1 : i32, hint = 3 : i32, rw = 1 : i32}> : (!llvm.ptr) -> ()
      %v41 = llvm.getelementptr %v11[64] : (!llvm.ptr) -> !llvm.ptr, i8
      "llvm.intr.prefetch"(%v41) <{cache = 1 : i32, hint = 3 : i32, rw = 1 : i32}> : (!llvm.ptr) -> ()
      %v42 = llvm.getelementptr %v8[3] : (!llvm.ptr) -> !llvm.ptr, f32
      %v43 = llvm.getelementptr %pointer1[48] : (!llvm.ptr) -> !llvm.ptr, f32
      %v44 = arith.addf %v16, %v26 : vector<16xf32>
      %v45 = arith.addf %v20, %v30 : vector<16xf32>
      %v46 = arith.addf %v44, %v36 : vector<16xf32>
      %v47 = arith.addf %v45, %v40 : vector<16xf32>
      %v48 = arith.constant 16 : i64
      %v49 = arith.muli %v5, %v48 : i64
      %v50 = llvm.getelementptr %pointer3[%v49] : (!llvm.ptr, i64) -> !llvm.ptr, f32
      %v51 = llvm.load %pointer2 {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
      %v52 = arith.addf %v46, %v51 : vector<16xf32>
      %v53 = arith.constant dense<0x00000000> : vector<16xf32>
      %v54 = arith.maximumf %v52, %v53 : vector<16xf32>
      llvm.store %v54, %v50 {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
      %v55 = arith.addf %v47, %v51 : vector<16xf32>
      %v56 = arith.constant dense<0x00000000> : vector<16xf32>
      %v57 = arith.maximumf %v55, %v56 : vector<16xf32>
      %v58 = llvm.getelementptr %v50[16] : (!llvm.ptr) -> !llvm.ptr, f32
      llvm.store %v57, %v58 {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
    }
  return
}
}
