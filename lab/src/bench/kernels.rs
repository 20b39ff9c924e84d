//! `bench kernels`: counts of the kernels at the shapes of an 8B model (slices of it), on the simulator, as JSON.
//!
//! The figures are those of the PTX, exact and the same on every machine: they tell how much memory traffic a kernel causes,
//! not how fast it is.

mod sample;

use std::{fs, path::PathBuf};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use tokenmill_backend::{KvLayerShape, KvType};
use tokenmill_cuda_exec::{
    DecodePlan, FewRows, MatrixLayout, SampleRecord, Visible,
    modules::{PAIRS, ptx, type_suffix},
};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters, DeviceMemory, DevicePtr, LaunchConfig, Module, launch};
use tokenmill_quant::Format;

use self::sample::sample;

const NULL: DevicePtr = DevicePtr(0);
const N_EMBD: usize = 4096;
const N_FF: usize = 14336;
const N_VOCAB: usize = 128_256;

/// A launch to count.
struct Launch {
    module: String,
    kernel: String,
    grid: [usize; 3],
    block: usize,
    shared_bytes: usize,
}

/// Count what the kernels do at the shapes of an 8B model, on the simulator
#[derive(clap::Args)]
pub(super) struct Args {
    /// Write the figures to this file instead of the terminal
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Counts.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for ty in Format::all().iter().map(Format::tensor_type) {
        for (n_rows, n_in) in [(1, N_EMBD), (1, N_FF), (4, N_EMBD), (8, N_EMBD)] {
            rows.push(matvec(ty, n_rows, 64, n_in)?);
        }
    }
    for ty in [TensorType::Q4_K, TensorType::Q8_0, TensorType::F16] {
        rows.push(gated(ty, 64)?);
    }
    for types in PAIRS {
        rows.push(pair(types, [64, 16])?);
    }
    for ty in (Format::all().iter().filter(|format| !format.is_float())).map(Format::tensor_type) {
        rows.push(matmul(ty, 64, 128, N_EMBD)?);
    }
    rows.push(norm()?);
    for (context, window) in [(512, 0), (4096, 0), (4096, 1024)] {
        rows.push(attention(context, window)?);
    }
    for n_tokens in [32, 64, 256] {
        rows.push(prefill(1024, n_tokens)?);
    }
    rows.push(argmax()?);
    rows.push(rope_kv()?);
    rows.extend(sample("greedy", SampleRecord::GREEDY, 1.0)?);
    rows.extend(sample("top-p 0.9", 0, 0.9)?);
    for ty in [TensorType::Q4_K, TensorType::F16] {
        rows.push(embed(ty)?);
    }
    let report = json!({ "source": "ptx-sim", "kernels": rows });
    match &args.out {
        Some(out) => fs::write(out, format!("{report:#}\n"))?,
        None => println!("{report:#}"),
    }
    Ok(())
}

/// Returns whether the kernels of a type take quantized rows.
fn is_quantized(ty: TensorType) -> bool {
    ty.block_len() > 1
}

fn zeros(memory: &mut DeviceMemory, bytes: usize) -> anyhow::Result<DevicePtr> {
    Ok(memory.alloc_with(&vec![0; bytes])?)
}

fn u32s(memory: &mut DeviceMemory, values: &[u32]) -> anyhow::Result<DevicePtr> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(memory.alloc_with(&bytes)?)
}

fn count(memory: &mut DeviceMemory, what: &Launch, arguments: &Arguments) -> anyhow::Result<Counters> {
    let text = ptx(&what.module).context("a module of that name")?;
    let loaded = Module::load(&text, memory)?;
    let mut config = LaunchConfig::new(what.grid.map(|n| n as u32), [what.block as u32, 1, 1]);
    config.shared_bytes = what.shared_bytes as u32;
    let report = launch(loaded.kernel(&what.kernel)?, memory, &config, arguments)?;
    match report.findings.first() {
        Some(finding) => Err(anyhow!(finding.to_string())),
        None => Ok(report.counters),
    }
}

/// Returns one row of the report. `streams` are the buffers that should be read once; instructions are divided by `n_items`.
fn row(
    what: &Launch,
    shape: &str,
    item: &str,
    n_items: usize,
    streams: &[DevicePtr],
    counters: &Counters,
) -> Value {
    let sum = |pick: fn(&tokenmill_ptx_sim::BufferTraffic) -> u64| -> u64 {
        streams
            .iter()
            .filter_map(|address| counters.buffers.get(address))
            .map(pick)
            .sum()
    };
    let (loaded, unique) = (
        sum(|buffer| buffer.loaded_sectors),
        sum(|buffer| buffer.unique_loaded_sectors),
    );
    let instructions: serde_json::Map<String, Value> = counters
        .instructions
        .iter()
        .map(|(class, count)| (class.name().to_owned(), json!(count)))
        .collect();
    let per_item = |count: u64| (count as f64 * 32.0 / n_items as f64 * 1000.0).round() / 1000.0;
    json!({
        "kernel": format!("{}/{}", what.module, what.kernel),
        "shape": shape,
        "thread_blocks": counters.thread_blocks,
        "warp_instructions": counters.warp_instructions(),
        (format!("thread_instructions_per_{item}")): per_item(counters.warp_instructions()),
        "stream_sectors_requested": loaded,
        "stream_sectors_necessary": unique,
        "stream_ratio": (loaded as f64 / unique.max(1) as f64 * 1000.0).round() / 1000.0,
        "load_sectors": counters.loads.sectors,
        "load_sectors_necessary": counters.loads.necessary_sectors,
        "store_sectors": counters.stores.sectors,
        "store_sectors_necessary": counters.stores.necessary_sectors,
        "shared_wavefronts": counters.shared.wavefronts,
        "shared_wavefronts_without_conflicts": counters.shared.ideal_wavefronts,
        "instructions": instructions,
    })
}

/// Returns the arguments of a product of one matrix, and the matrix.
fn product(
    memory: &mut DeviceMemory,
    ty: TensorType,
    [n_rows, n_out, n_in]: [usize; 3],
) -> anyhow::Result<(Arguments, DevicePtr)> {
    let weights = zeros(memory, MatrixLayout::of(ty, n_out, n_in)?.bytes())?;
    let y = memory.alloc((4 * n_rows * n_out) as u64)?;
    let mut arguments = Arguments::new().ptr(weights).ptr(NULL).ptr(NULL).ptr(y);
    arguments = (0..5).fold(arguments, |arguments, _| arguments.ptr(NULL));
    for n in [n_out, 0, 0, n_in, n_rows] {
        arguments = arguments.i32(n as i32);
    }
    let arguments = with_input(memory, arguments, ty, [n_rows, n_in])?;
    Ok((arguments, weights))
}

/// Appends rows of zeros in the form that a type's kernels take.
fn with_input(
    memory: &mut DeviceMemory,
    arguments: Arguments,
    ty: TensorType,
    [n_rows, n_in]: [usize; 2],
) -> anyhow::Result<Arguments> {
    Ok(if is_quantized(ty) {
        arguments
            .ptr(zeros(memory, n_rows * n_in)?)
            .ptr(zeros(memory, n_rows * n_in / 4)?)
    } else {
        arguments.ptr(zeros(memory, 4 * n_rows * n_in)?)
    })
}

fn matvec(ty: TensorType, n_rows: usize, n_out: usize, n_in: usize) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let (arguments, weights) = product(&mut memory, ty, [n_rows, n_out, n_in])?;
    let what = Launch {
        module: format!("matvec_{}", type_suffix(ty).context("a type with kernels")?),
        kernel: format!("matvec_m{n_rows}"),
        grid: [n_out.div_ceil(FewRows::of(ty).block_rows(n_out, n_in)), 1, 1],
        block: 128,
        shared_bytes: FewRows::of(ty).shared_bytes(n_rows),
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let shape = format!("{n_out} x {n_in} by {n_rows}");
    Ok(row(&what, &shape, "weight", n_out * n_in, &[weights], &counters))
}

fn gated(ty: TensorType, n_out: usize) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let bytes = MatrixLayout::of(ty, n_out, N_EMBD)?.bytes();
    let (gate, up) = (zeros(&mut memory, bytes)?, zeros(&mut memory, bytes)?);
    let arguments = Arguments::new()
        .ptr(gate)
        .ptr(up)
        .i32(n_out as i32)
        .ptr(NULL)
        .ptr(NULL)
        .i32(0)
        .ptr(NULL)
        .ptr(memory.alloc(n_out as u64)?)
        .ptr(memory.alloc(n_out as u64 / 4)?)
        .i32(N_EMBD as i32)
        .i32(1);
    let arguments = with_input(&mut memory, arguments, ty, [1, N_EMBD])?;
    let what = Launch {
        module: format!("matvec_{}", type_suffix(ty).context("a type with kernels")?),
        kernel: "matvec_gated_m1".to_owned(),
        grid: [n_out.div_ceil(32), 1, 1],
        block: FewRows::of(ty).gated_threads() as usize,
        shared_bytes: FewRows::of(ty).gated_shared_bytes(1),
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let shape = format!("2 x {n_out} x {N_EMBD} by 1");
    Ok(row(
        &what,
        &shape,
        "weight",
        2 * n_out * N_EMBD,
        &[gate, up],
        &counters,
    ))
}

/// Launches rows of a first type, twice, and of a second, as query, key and value weights.
fn pair(types: [TensorType; 2], n_outs: [usize; 2]) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let [first, second] = types.map(|ty| type_suffix(ty).context("a type with kernels"));
    let jobs = [
        (types[0], n_outs[0]),
        (types[0], n_outs[1]),
        (types[1], n_outs[1]),
    ];
    let mut weights = [NULL; 3];
    let mut outputs = [NULL; 3];
    for (job, (ty, n_out)) in jobs.into_iter().enumerate() {
        weights[job] = zeros(&mut memory, MatrixLayout::of(ty, n_out, N_EMBD)?.bytes())?;
        outputs[job] = memory.alloc(4 * n_out as u64)?;
    }
    let mut arguments = Arguments::new();
    for address in weights.into_iter().chain(outputs).chain([NULL; 3]) {
        arguments = arguments.ptr(address);
    }
    for n in [n_outs[0], n_outs[1], n_outs[1], N_EMBD, 1] {
        arguments = arguments.i32(n as i32);
    }
    let arguments = with_input(&mut memory, arguments, types[0], [1, N_EMBD])?;
    let n_blocks =
        (jobs.iter()).map(|&(ty, n_out)| n_out.div_ceil(FewRows::of(ty).block_rows(n_out, N_EMBD)));
    let shared_bytes = types.map(|ty| FewRows::of(ty).shared_bytes(1));
    let what = Launch {
        module: format!("matvec_{}_{}", first?, second?),
        kernel: "matvec_pair_m1".to_owned(),
        grid: [n_blocks.sum(), 1, 1],
        block: 128,
        shared_bytes: shared_bytes.into_iter().max().unwrap_or(0),
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let n_rows = n_outs[0] + 2 * n_outs[1];
    let shape = format!(
        "({} + {}) and {} x {N_EMBD} by 1",
        n_outs[0], n_outs[1], n_outs[1]
    );
    Ok(row(&what, &shape, "weight", n_rows * N_EMBD, &weights, &counters))
}

fn matmul(ty: TensorType, n_rows: usize, n_out: usize, n_in: usize) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let (arguments, weights) = product(&mut memory, ty, [n_rows, n_out, n_in])?;
    let what = Launch {
        module: format!("matmul_{}", type_suffix(ty).context("a type with kernels")?),
        kernel: "matmul_n64".to_owned(),
        grid: [n_out.div_ceil(128), n_rows.div_ceil(64), 1],
        block: 256,
        shared_bytes: 0,
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let shape = format!("{n_out} x {n_in} by {n_rows}");
    Ok(row(&what, &shape, "weight", n_out * n_in, &[weights], &counters))
}

fn norm() -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let (hidden, delta) = (zeros(&mut memory, 4 * N_EMBD)?, zeros(&mut memory, 4 * N_EMBD)?);
    let arguments = Arguments::new()
        .ptr(hidden)
        .ptr(delta)
        .f32(1.0)
        .ptr(zeros(&mut memory, 4 * N_EMBD)?)
        .ptr(NULL)
        .i32(0)
        .f32(1e-5)
        .i32(N_EMBD as i32)
        .ptr(NULL)
        .ptr(memory.alloc(N_EMBD as u64)?)
        .ptr(memory.alloc(N_EMBD as u64 / 4)?);
    let what = Launch {
        module: "norm".to_owned(),
        kernel: "add_norm_held".to_owned(),
        grid: [1, 1, 1],
        block: 512,
        shared_bytes: 0,
    };
    let counters = count(&mut memory, &what, &arguments)?;
    Ok(row(
        &what,
        &format!("1 x {N_EMBD}"),
        "value",
        N_EMBD,
        &[delta],
        &counters,
    ))
}

/// Shape of the attention of an 8B model.
const HEADS: [usize; 2] = [32, 8];
const HEAD_DIM: usize = 128;

struct Attention {
    arguments: Arguments,
    stores: [DevicePtr; 2],
}

fn attention_arguments(
    memory: &mut DeviceMemory,
    positions: &[u32],
    sequences: &[u32],
    context: usize,
    window: usize,
    is_decode: bool,
) -> anyhow::Result<Attention> {
    let [n_heads, n_kv_heads] = HEADS;
    let n_pages = context.div_ceil(16);
    let pages: Vec<u32> = (0..n_pages as u32).collect();
    let row_bytes = 4 * n_heads * HEAD_DIM;
    let store_bytes = n_pages * 16 * n_kv_heads * HEAD_DIM * 2;
    let stores = [zeros(memory, store_bytes)?, zeros(memory, store_bytes)?];
    let mut arguments = Arguments::new()
        .ptr(zeros(memory, positions.len() * row_bytes)?)
        .ptr(memory.alloc((positions.len() * row_bytes) as u64)?);
    if is_decode {
        arguments = arguments.ptr(NULL).ptr(NULL);
    }
    arguments = arguments
        .ptr(u32s(memory, positions)?)
        .ptr(u32s(memory, sequences)?);
    if is_decode {
        arguments = arguments.ptr(NULL);
    }
    arguments = arguments
        .ptr(u32s(memory, &[0, n_pages as u32])?)
        .ptr(u32s(memory, &pages)?)
        .ptr(stores[0])
        .ptr(stores[1])
        .ptr(NULL)
        .ptr(NULL)
        .f32(0.088)
        .f32(0.0);
    arguments = arguments.i32(window as i32);
    if !is_decode {
        arguments = arguments.i32(0).i32(0);
    }
    for n in [n_heads, n_kv_heads, HEAD_DIM, HEAD_DIM] {
        arguments = arguments.i32(n as i32);
    }
    if is_decode {
        // Distance of rows of values.
        arguments = arguments.i32(HEAD_DIM as i32).i32(0);
    }
    Ok(Attention { arguments, stores })
}

fn attention(context: usize, window: usize) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let [n_heads, n_kv_heads] = HEADS;
    let seen = if window > 0 { window.min(context) } else { context };
    let types = [KvType::F16; 2];
    let layer = KvLayerShape {
        n_kv_heads,
        head_dim_k: HEAD_DIM,
        head_dim_v: HEAD_DIM,
        has_values_in_keys: false,
    };
    let visible = Visible::causal(context).with_window(window);
    let plan = DecodePlan::of(n_heads, layer, types, visible);
    let attention = attention_arguments(&mut memory, &[context as u32 - 1], &[0], context, window, true)?;
    let partial = memory.alloc((4 * plan.partial_len(n_heads, HEAD_DIM)) as u64)?;
    let mut arguments = attention.arguments;
    let [columns_k, columns_v] = plan.columns;
    for n in [
        plan.heads,
        plan.split_bits as usize,
        columns_k,
        columns_v,
        plan.n_stages,
        plan.warp_tokens,
    ] {
        arguments = arguments.i32(n as i32);
    }
    let arguments = arguments
        .ptr(partial)
        .ptr(zeros(&mut memory, 4 * plan.n_blocks_x)?);
    let what = Launch {
        module: "attention_decode".to_owned(),
        kernel: plan.kernel(types),
        grid: [plan.n_blocks_x, plan.n_splits, 1],
        block: DecodePlan::THREADS as usize,
        shared_bytes: plan.shared_bytes,
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let shape = format!("{n_heads}/{n_kv_heads} heads of {HEAD_DIM}, {seen} positions of {context}");
    let n_items = 2 * seen * n_kv_heads * HEAD_DIM;
    Ok(row(
        &what,
        &shape,
        "stored_value",
        n_items,
        &attention.stores,
        &counters,
    ))
}

fn prefill(first: usize, n_tokens: usize) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let context = first + n_tokens;
    let positions: Vec<u32> = (first as u32..context as u32).collect();
    let attention = attention_arguments(&mut memory, &positions, &[0, n_tokens as u32], context, 0, false)?;
    let [n_heads, n_kv_heads] = HEADS;
    let what = Launch {
        module: "attention_prefill".to_owned(),
        kernel: "attention_prefill_d128".to_owned(),
        grid: [n_kv_heads, (n_tokens * n_heads / n_kv_heads).div_ceil(128), 1],
        block: 256,
        shared_bytes: 2 * 64 * (128 + 8) * 2,
    };
    let counters = count(&mut memory, &what, &attention.arguments)?;
    let shape = format!("{n_tokens} tokens after {first}, {n_heads}/{n_kv_heads} heads of {HEAD_DIM}");
    let n_items = n_tokens * context * n_heads * HEAD_DIM * 2;
    Ok(row(
        &what,
        &shape,
        "multiply_add",
        n_items,
        &attention.stores,
        &counters,
    ))
}

fn argmax() -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let n_parts = 64;
    let logits = zeros(&mut memory, 4 * N_VOCAB)?;
    let best = memory.alloc(8 * n_parts as u64)?;
    let arguments = Arguments::new().ptr(logits).i32(N_VOCAB as i32).ptr(best);
    let what = Launch {
        module: "argmax".to_owned(),
        kernel: "argmax_partial".to_owned(),
        grid: [n_parts, 1, 1],
        block: 256,
        shared_bytes: 0,
    };
    let counters = count(&mut memory, &what, &arguments)?;
    Ok(row(
        &what,
        &format!("1 x {N_VOCAB}"),
        "logit",
        N_VOCAB,
        &[logits],
        &counters,
    ))
}

fn rope_kv() -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let [n_heads, n_kv_heads] = HEADS;
    let q = zeros(&mut memory, 4 * n_heads * HEAD_DIM)?;
    let k = zeros(&mut memory, 4 * n_kv_heads * HEAD_DIM)?;
    let v = zeros(&mut memory, 4 * n_kv_heads * HEAD_DIM)?;
    let mut arguments = Arguments::new()
        .ptr(q)
        .ptr(k)
        .ptr(v)
        .ptr(u32s(&mut memory, &[1000])?)
        .ptr(u32s(&mut memory, &[5])?)
        .ptr(zeros(&mut memory, 4 * HEAD_DIM / 2)?)
        .f32(1.0)
        .i32(HEAD_DIM as i32)
        .i32(0)
        .ptr(NULL)
        .ptr(NULL)
        .f32(0.0);
    for n in [n_heads, n_kv_heads, HEAD_DIM, HEAD_DIM] {
        arguments = arguments.i32(n as i32);
    }
    let page_bytes = 16 * n_kv_heads * HEAD_DIM * 2;
    let arguments = arguments
        .ptr(memory.alloc(page_bytes as u64)?)
        .ptr(memory.alloc(page_bytes as u64)?);
    let what = Launch {
        module: "rope_kv".to_owned(),
        kernel: "rope_kv_f16".to_owned(),
        grid: [n_heads + 2 * n_kv_heads, 1, 1],
        block: 32,
        shared_bytes: 4 * HEAD_DIM,
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let shape = format!("1 token, {n_heads}/{n_kv_heads} heads of {HEAD_DIM}");
    let n_items = (n_heads + 2 * n_kv_heads) * HEAD_DIM;
    Ok(row(&what, &shape, "value", n_items, &[q, k, v], &counters))
}

fn embed(ty: TensorType) -> anyhow::Result<Value> {
    let mut memory = DeviceMemory::new();
    let n_vocab = 64;
    let table = zeros(&mut memory, MatrixLayout::of(ty, n_vocab, N_EMBD)?.bytes())?;
    let arguments = Arguments::new()
        .ptr(table)
        .i32(n_vocab as i32)
        .i32(N_EMBD as i32)
        .ptr(u32s(&mut memory, &[7])?)
        .ptr(u32s(&mut memory, &[0])?)
        .f32(1.0)
        .ptr(memory.alloc(4 * N_EMBD as u64)?);
    let what = Launch {
        module: format!("embed_{}", type_suffix(ty).context("a type with kernels")?),
        kernel: "embed".to_owned(),
        grid: [1, 1, 1],
        block: 128,
        shared_bytes: 0,
    };
    let counters = count(&mut memory, &what, &arguments)?;
    let shape = format!("1 row of {N_EMBD}");
    Ok(row(&what, &shape, "value", N_EMBD, &[table], &counters))
}
