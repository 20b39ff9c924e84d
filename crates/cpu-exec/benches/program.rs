//! Measures what a program costs: a step of 350 operations on one row of 64 values, run by a [`Bridge`] and as calls of the same
//! backend.
//!
//! Both make the same calls, without fusion, so that the difference is the interpretation of the program. The goal is at most 5
//! microseconds a step. One thread, processor time.
//!
//! [`Bridge`]: tokenmill_backend::program::Bridge

mod cpu_time;

use std::{sync::Arc, time::Duration};

use cpu_time::CpuTime;
use criterion::{Criterion, criterion_group, criterion_main};
use tokenmill_backend::{
    Activation, Backend, BackendError, ExecutorLimits, ForwardBatch, KvLayout, KvType, LayerShape, Linear,
    MatrixData, MatrixUsage, Memory, MemoryPlan, NetworkPart, NetworkShape, Norm, NormKind, StepOutput,
    TokenSource,
    program::{
        Fusion, MatrixId, MatrixInfo, Op, Prepared, Program, ProgramDevice, VectorId, VectorInfo, Weights,
    },
};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_quant::CpuFeatures;

const WIDTH: usize = 64;
/// Number of rounds of seven operations.
const N_ROUNDS: usize = 50;
const PART: NetworkPart = NetworkPart::Mixer(0);
const SCALE: f32 = 0.5;

/// The table of tokens, and three matrices that all rounds share.
const MATRICES: [(&str, MatrixUsage); 4] = [
    ("token_embd", MatrixUsage::Embedding),
    ("gate", MatrixUsage::Linear),
    ("up", MatrixUsage::Linear),
    ("down", MatrixUsage::Linear),
];

fn wave(len: usize) -> Vec<f32> {
    (0..len).map(|idx| (idx as f32 * 0.37).sin() * 0.1).collect()
}

/// Calls with each matrix's data.
fn each_matrix(store: &mut dyn FnMut(&MatrixData<'_>)) {
    let bytes: Vec<u8> = (wave(WIDTH * WIDTH).iter())
        .flat_map(|value| value.to_le_bytes())
        .collect();
    for (name, usage) in MATRICES {
        store(&MatrixData {
            name,
            ty: TensorType::F32,
            n_out: WIDTH,
            n_in: WIDTH,
            bytes: bytes[..].into(),
            usage,
        });
    }
}

fn cpu() -> CpuBackend {
    CpuBackend::new(Some(1), CpuFeatures::detect()).expect("a thread")
}

fn limits() -> ExecutorLimits {
    ExecutorLimits {
        n_vocab: WIDTH,
        n_embd: WIDTH,
        n_ctx: 16,
        n_pages: 1,
        n_host_pages: 0,
        max_batch_tokens: 1,
        max_batch_seqs: 1,
        max_logit_rows: 1,
        kv_window: None,
        window_group: None,
        pooling: None,
        is_encoder: false,
        n_states: 0,
    }
}

fn network() -> NetworkShape {
    NetworkShape {
        n_embd: WIDTH,
        layers: vec![LayerShape::default()],
        has_streams: false,
        reads_hidden: false,
    }
}

/// A store of no layer: nothing attends.
fn kv_layout() -> KvLayout {
    KvLayout {
        layers: Vec::new(),
        groups: Vec::new(),
        n_pages: 1,
        n_host_pages: 0,
        n_window_pages: 0,
        n_window_host_pages: 0,
        key_type: KvType::F32,
        value_type: KvType::F32,
    }
}

/// A step of one token, whose row is read.
fn batch() -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    batch.push_sequence([TokenSource::Id(3)], 0, &[0]);
    batch.hidden_rows = vec![0];
    batch
}

fn linear<M, V>(matrix: M) -> Linear<M, V> {
    Linear {
        matrix,
        bias: None,
        n_out: WIDTH,
        n_in: WIDTH,
        adapter_place: None,
    }
}

fn norm<V>(weight: V) -> Norm<V> {
    Norm {
        kind: NormKind::Rms,
        width: WIDTH,
        weight: Some(weight),
        bias: None,
        eps: 1e-5,
    }
}

/// Writes the step as a program.
fn program() -> Program {
    let mut weights = Weights::default();
    let matrices = MATRICES.map(|(name, usage)| {
        weights.add_matrix(MatrixInfo {
            name: name.to_owned(),
            n_out: WIDTH,
            n_in: WIDTH,
            part: PART,
            usage,
        })
    });
    let weight: VectorId = weights.add_vector(VectorInfo {
        name: "norm".to_owned(),
        len: WIDTH,
        part: PART,
    });
    let [table, gate, up, down]: [MatrixId; 4] = matrices;
    let mut program = Program::new(Arc::new(weights), Vec::new());
    program.enter(PART);
    let mut x = program.push(|y| Op::Embed { table, scale: 1.0, y });
    for _ in 0..N_ROUNDS {
        let normed = program.push(|y| Op::Norm {
            norm: norm(weight),
            x,
            y,
        });
        let [gated, up] = [gate, up].map(|matrix| {
            program.push(|y| Op::Linear {
                linear: linear(matrix),
                x: normed,
                y,
            })
        });
        let inside = program.push(|y| Op::Activation {
            activation: Activation::Silu,
            x: gated,
            up: Some(up),
            y,
        });
        let delta = program.push(|y| Op::Linear {
            linear: linear(down),
            x: inside,
            y,
        });
        let sum = program.push(|y| Op::Add {
            scale: 1.0,
            x,
            delta,
            y,
        });
        x = program.push(|y| Op::Scale {
            scale: SCALE,
            cap: None,
            x: sum,
            y,
        });
    }
    program.push_last(Op::Sample {
        logits: None,
        rows: Some(x),
    });
    program
}

/// Loads the program on the CPU.
fn device() -> Box<dyn ProgramDevice> {
    let mut device: Box<dyn ProgramDevice> = cpu().into();
    let (limits, kv) = (limits(), kv_layout());
    device
        .prepare(&network(), &limits, &kv, &MemoryPlan::default())
        .expect("room");
    let weights = device.weights();
    weights.enter(PART);
    each_matrix(&mut |data| weights.store_matrix(data).expect("room"));
    weights.store_vector(&wave(WIDTH)).expect("room");
    let prepared = Prepared::new(&program(), &limits, [WIDTH, WIDTH], Fusion::None);
    device.alloc(prepared, &kv, None).expect("room");
    device
}

/// The step as calls of the backend.
struct Calls {
    backend: CpuBackend,
    matrices: Vec<Linear<<CpuBackend as Memory>::Matrix, <CpuBackend as Memory>::Vector>>,
    norm: Norm<<CpuBackend as Memory>::Vector>,
    /// The stream, its norm, the two products that are multiplied, their product, and logits, of which there are none.
    buffers: [Vec<f32>; 6],
}

impl Calls {
    fn new() -> Self {
        let mut backend = cpu();
        backend
            .prepare(&network(), &limits(), &kv_layout(), &MemoryPlan::default())
            .expect("room");
        let mut matrices = Vec::new();
        each_matrix(&mut |data| matrices.push(linear(backend.upload_matrix(data).expect("room"))));
        let norm = norm(backend.upload_vector(&wave(WIDTH)).expect("room"));
        backend.alloc_kv(&kv_layout()).expect("room");
        let buffers = [(); 6].map(|()| backend.alloc(1, WIDTH).expect("room"));
        Self {
            backend,
            matrices,
            norm,
            buffers,
        }
    }

    fn step(&mut self, batch: &ForwardBatch) -> Result<(), BackendError> {
        let Self {
            backend,
            matrices,
            norm,
            buffers: [x, normed, gate, up, delta, logits],
        } = self;
        let shape = backend.begin_step(batch)?;
        backend.run_step(shape, |backend, shape| {
            let n_rows = shape.n_tokens;
            backend.embed(&matrices[0].matrix, 1.0, n_rows, x)?;
            for _ in 0..N_ROUNDS {
                backend.norm(norm, x, n_rows, normed)?;
                backend.linear(&matrices[1], normed, n_rows, gate)?;
                backend.linear(&matrices[2], normed, n_rows, up)?;
                backend.activation(Activation::Silu, n_rows, WIDTH, gate, Some(&*up))?;
                backend.linear(&matrices[3], gate, n_rows, delta)?;
                backend.add(1.0, n_rows, WIDTH, x, delta)?;
                backend.scale_logits(SCALE, None, n_rows, WIDTH, x)?;
            }
            backend.sample(&shape, WIDTH, WIDTH, logits, x)
        })
    }
}

fn steps(c: &mut Criterion<CpuTime>) {
    let (mut device, mut calls, batch) = (device(), Calls::new(), batch());
    let mut outputs = [(); 2].map(|()| StepOutput::default());
    device.run_step(&batch).expect("a step");
    device.read(&mut outputs[0]).expect("a step");
    calls.step(&batch).expect("a step");
    calls.backend.read(&mut outputs[1]).expect("a step");
    assert_eq!(outputs[0].hidden.len(), WIDTH);
    assert_eq!(outputs[0].hidden, outputs[1].hidden, "both compute the same");

    let mut group = c.benchmark_group("a step of 350 operations");
    let [output, _] = &mut outputs;
    group.bench_function("program", |b| {
        b.iter(|| {
            device.run_step(&batch).expect("a step");
            device.read(output).expect("a step");
        });
    });
    group.bench_function("calls", |b| {
        b.iter(|| {
            calls.step(&batch).expect("a step");
            calls.backend.read(output).expect("a step");
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(1500));
    targets = steps
}
criterion_main!(benches);
