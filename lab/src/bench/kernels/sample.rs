//! Counts the launches of sampling. One row of logits takes several launches, which pass results to each
//! other.

use serde_json::Value;
use tokenmill_cuda_exec::{SamplePlan, SampleRecord};
use tokenmill_ptx_sim::{Arguments, DeviceMemory};

use super::{Launch, N_VOCAB, count, row, u32s, zeros};

/// Counts the launches for a row of logits between 0 and 8, so that filters have something to do.
pub(super) fn sample(name: &str, flags: u32, top_p: f32) -> anyhow::Result<Vec<Value>> {
    let mut memory = DeviceMemory::new();
    let bytes: Vec<u8> = (0..N_VOCAB as u32)
        .flat_map(|id| ((id.wrapping_mul(2_654_435_761) >> 16) as f32 / 8192.0).to_le_bytes())
        .collect();
    let logits = memory.alloc_with(&bytes)?;
    let record = SampleRecord {
        flags,
        temperature: 1.0,
        top_p,
        ln_min_p: f32::NEG_INFINITY,
        newest: SampleRecord::NONE,
        mask_start: SampleRecord::NONE,
        ..SampleRecord::raw()
    };
    let records = u32s(&mut memory, &record.to_words())?;
    let nothing = zeros(&mut memory, 4)?;
    let adjusted = memory.alloc(4 * N_VOCAB as u64)?;
    let plan = SamplePlan::of(N_VOCAB);
    let n_parts = plan.n_parts;
    let parts = memory.alloc(8 * plan.part_words(1) as u64)?;
    let many = memory.alloc(8 * SamplePlan::MANY_WORDS as u64)?;
    let result = |memory: &mut DeviceMemory| memory.alloc(4);
    let results = [
        result(&mut memory)?,
        result(&mut memory)?,
        result(&mut memory)?,
        result(&mut memory)?,
        result(&mut memory)?,
    ];
    let mut arguments = Arguments::new()
        .ptr(logits)
        .ptr(adjusted)
        .i32(N_VOCAB as i32)
        .ptr(records);
    for _ in 0..5 {
        arguments = arguments.ptr(nothing);
    }
    let shape = format!("1 x {N_VOCAB}, {name}");
    let mut rows = Vec::new();
    let mut launch = |kernel: &str, n_blocks, block: u32, arguments: &Arguments| -> anyhow::Result<()> {
        let what = Launch {
            module: "sample".to_owned(),
            kernel: kernel.to_owned(),
            grid: [n_blocks, 1, 1],
            block: block as usize,
            shared_bytes: 0,
        };
        let counters = count(&mut memory, &what, arguments)?;
        rows.push(row(&what, &shape, "logit", N_VOCAB, &[logits], &counters));
        Ok(())
    };
    let of_parts = arguments.ptr(parts).ptr(many);
    launch("sample_parts", n_parts, SamplePlan::PART_THREADS, &of_parts)?;
    let inputs = || Arguments::new().ptr(logits).ptr(adjusted).i32(N_VOCAB as i32);
    let has_many = record.draws_many(N_VOCAB);
    if has_many {
        let arguments = inputs().ptr(records).ptr(parts).ptr(many);
        for kernel in ["sample_weights", "sample_candidates"] {
            launch(kernel, n_parts, SamplePlan::PART_THREADS, &arguments)?;
        }
    }
    let mut of_row = inputs().i32(n_parts as i32).ptr(records).ptr(parts).ptr(many);
    of_row = of_row.i32(i32::from(has_many));
    for result in results {
        of_row = of_row.ptr(result);
    }
    launch("sample_rows", 1, SamplePlan::ROW_THREADS, &of_row)?;
    Ok(rows)
}
