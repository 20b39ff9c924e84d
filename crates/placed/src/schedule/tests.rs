//! Schedules of small programs, in words.

use tokenmill_backend::{
    ExecutorLimits, ExpertScore, ExpertsShape, KvLayerShape, KvStoreOfLayer, LayerShape, Linear, MatrixUsage,
    NetworkShape, Norm, NormKind, Router,
    program::{
        CarriedValue, ExpertInputKind, Fusion, LinearId, MatrixId, MatrixInfo, Prepared, Program, Slot,
        StepVariant, VectorId, VectorInfo, Wanted, Weights,
    },
};

use super::*;
use crate::{LayerPlacement, programs::Programs};

const WIDTH: usize = 8;
const N_EXPERTS: usize = 4;

fn limits() -> ExecutorLimits {
    ExecutorLimits {
        n_vocab: WIDTH,
        n_embd: WIDTH,
        n_ctx: 64,
        n_pages: 4,
        n_host_pages: 0,
        max_batch_tokens: 16,
        max_batch_seqs: 4,
        max_logit_rows: 8,
        kv_window: None,
        window_group: None,
        pooling: None,
        is_encoder: false,
        n_states: 0,
    }
}

/// A program over two layers of keys and values, and over matrices: a table that is also the head, a mixer's for each of two
/// layers, a router's, and that of experts. Its vectors, for rows and for experts, are of the feed-forward network.
fn program() -> Program {
    let mut weights = Weights::default();
    for (part, n_rows) in [
        (NetworkPart::Input, WIDTH),
        (NetworkPart::Mixer(0), WIDTH),
        (NetworkPart::Ffn(0), N_EXPERTS),
        (NetworkPart::Experts(0), WIDTH * N_EXPERTS),
        (NetworkPart::Mixer(1), WIDTH),
    ] {
        weights.add_matrix(MatrixInfo {
            name: String::new(),
            n_out: n_rows,
            n_in: WIDTH,
            part,
            usage: match part {
                NetworkPart::Input => MatrixUsage::Tied,
                _ => MatrixUsage::Linear,
            },
        });
    }
    for len in [WIDTH, N_EXPERTS] {
        weights.add_vector(VectorInfo {
            name: String::new(),
            len,
            part: NetworkPart::Ffn(0),
        });
    }
    let kv_layer = KvLayerShape {
        n_kv_heads: 1,
        head_dim_k: WIDTH,
        head_dim_v: WIDTH,
        has_values_in_keys: false,
    };
    Program::new(weights.into(), vec![kv_layer; 2])
}

fn linear(matrix: u32, n_out: usize) -> LinearId {
    Linear {
        matrix: MatrixId(matrix),
        bias: None,
        n_out,
        n_in: WIDTH,
        adapter_place: None,
    }
}

fn router() -> Router<VectorId> {
    Router {
        n_experts: N_EXPERTS,
        n_used: 1,
        score: ExpertScore::Softmax,
        choice_bias: None,
        groups: None,
        is_normalized: false,
        scale: 1.0,
        expert_scales: None,
    }
}

fn embed(program: &mut Program) -> Value {
    program.enter(NetworkPart::Input);
    let table = MatrixId(0);
    program.push(|y| Op::Embed { table, scale: 1.0, y })
}

/// Returns the programs of steps that return rows, and the placement of the layers.
fn prepared(mut program: Program, rows: Value, layers: Vec<LayerPlacement>) -> (Prepared, Placement) {
    program.enter(NetworkPart::Output);
    program.push_last(Op::Sample {
        logits: None,
        rows: Some(rows),
    });
    let layer = |idx| LayerShape {
        kv: Some(KvStoreOfLayer { idx, is_owner: true }),
        experts: Some(ExpertsShape {
            n_experts: N_EXPERTS,
            n_used: 1,
            n_ff: WIDTH,
        }),
        ..LayerShape::default()
    };
    let network = NetworkShape {
        n_embd: WIDTH,
        layers: (0..layers.len()).map(layer).collect(),
        has_streams: false,
        reads_hidden: false,
    };
    let prepared = Prepared::new(&program, &limits(), [WIDTH, WIDTH], Fusion::All);
    (prepared, Placement::new(&network, layers))
}

/// Returns the schedule of a step that returns all rows.
fn schedule_of(program: Program, rows: Value, layers: Vec<LayerPlacement>) -> Result<Schedule, BackendError> {
    let (prepared, placement) = prepared(program, rows, layers);
    let variant = StepVariant {
        outputs: Wanted::All,
        logits: Wanted::None,
    };
    super::schedule(&prepared, &prepared.variants()[variant.index()], &placement, true)
}

fn words(schedule: &[Action]) -> Vec<String> {
    let words = schedule.iter().filter_map(|action| match action {
        Action::Copy { to, .. } => Some(format!("copy to {to:?}")),
        // The slots of a program determine where a value has to move.
        Action::Run {
            op: Op::Move { .. }, ..
        } => None,
        Action::Run { op, side } => {
            let op = format!("{op:?}");
            Some(format!("{side:?}: {}", op.split(' ').next().unwrap_or_default()))
        }
    });
    words.collect()
}

/// Returns the schedule of a network of one layer, in words.
fn schedule(program: Program, rows: Value, layer: LayerPlacement) -> Result<Vec<String>, BackendError> {
    schedule_of(program, rows, vec![layer]).map(|schedule| words(&schedule))
}

#[test]
fn a_sum_and_its_norm_are_divided_at_a_border_and_the_sum_crosses_once() {
    use Side::{Device, Host};
    let sum_of = |ffn| {
        let mut program = program();
        let x = embed(&mut program);
        program.enter(NetworkPart::Mixer(0));
        let delta = program.push(|y| Op::Linear {
            linear: linear(1, WIDTH),
            x,
            y,
        });
        let sum = program.push(|y| Op::Add {
            scale: 1.0,
            x,
            delta,
            y,
        });
        program.enter(NetworkPart::Ffn(0));
        let norm = Norm {
            kind: NormKind::Rms,
            width: WIDTH,
            weight: Some(VectorId(0)),
            bias: None,
            eps: 1e-5,
        };
        let x = program.push(|y| Op::Norm { norm, x: sum, y });
        let logits = program.push(|y| Op::Linear {
            linear: linear(2, N_EXPERTS),
            x,
            y,
        });
        let columns = program.push(|y| Op::TakeColumns {
            first: 0,
            width: N_EXPERTS,
            x: sum,
            y,
        });
        let rows = program.push(|y| Op::Join {
            n_parts: 1,
            left: columns,
            right: logits,
            y,
        });
        let layer = LayerPlacement {
            mixer: Host,
            ffn,
            experts: ffn,
        };
        schedule(program, rows, layer)
    };
    let expected = [
        "Host: Embed",
        "Host: Linear",
        "Host: Add",
        "copy to Device",
        "Device: Norm",
        "Device: Linear",
        "Device: TakeColumns",
        "Device: Join",
        "Device: Sample",
    ];
    assert_eq!(sum_of(Device).unwrap(), expected);
    let together = sum_of(Host).unwrap();
    assert_eq!(together[1..3], ["Host: Linear", "Host: AddNorm"]);
    assert_eq!(
        together[together.len() - 2..],
        ["copy to Device", "Device: Sample"]
    );
}

#[test]
fn the_device_begins_a_shared_network_before_the_experts_of_the_host() {
    use Side::{Device, Host};
    let of = |layer: LayerPlacement| {
        let mut program = program();
        let x = embed(&mut program);
        program.enter(NetworkPart::Ffn(0));
        let logits = program.push(|y| Op::Linear {
            linear: linear(2, N_EXPERTS),
            x,
            y,
        });
        program.enter(NetworkPart::Experts(0));
        let router = router();
        let routes = program.push(|y| Op::Route { router, x: logits, y });
        let choices = program.push(|y| Op::ExpertsLinear {
            experts: linear(3, WIDTH),
            routes,
            rows: ExpertInputKind::OfRows,
            x,
            y,
        });
        program.enter(NetworkPart::Ffn(0));
        let carried = program.push(|y| Op::Linear {
            linear: linear(1, WIDTH),
            x,
            y,
        });
        program.enter(NetworkPart::Experts(0));
        let rows = program.push(|y| Op::Combine {
            routes,
            x: choices,
            carried: CarriedValue::Whole(carried),
            y,
        });
        schedule(program, rows, layer).unwrap()
    };
    let host_experts = LayerPlacement {
        experts: Host,
        ..LayerPlacement::whole(Device)
    };
    let expected = [
        "Device: Embed",
        "Device: Linear",
        "copy to Host",
        "Host: Route",
        "copy to Host",
        "Device: Linear",
        "Host: ExpertsLinear",
        "copy to Host",
        "Host: Combine",
        "copy to Device",
        "Device: Sample",
    ];
    assert_eq!(of(host_experts), expected);
    let device_experts = LayerPlacement {
        experts: Device,
        ..LayerPlacement::whole(Host)
    };
    let expected = [
        "Host: Embed",
        "Host: Linear",
        "copy to Device",
        "Device: Route",
        "copy to Device",
        "Device: ExpertsLinear",
        "Host: Linear",
        "copy to Device",
        "Device: Combine",
        "Device: Sample",
    ];
    assert_eq!(of(device_experts), expected);
}

#[test]
fn an_operation_whose_weights_are_apart_is_refused() {
    let mut program = program();
    let x = embed(&mut program);
    program.enter(NetworkPart::Mixer(0));
    let linear = Linear {
        bias: Some(VectorId(0)),
        ..linear(1, WIDTH)
    };
    let rows = program.push(|y| Op::Linear { linear, x, y });
    let layer = LayerPlacement {
        mixer: Side::Host,
        ..LayerPlacement::whole(Side::Device)
    };
    assert_eq!(
        schedule(program, rows, layer).unwrap_err().to_string(),
        "a split network does not support layer 0, where weights and keys are apart; place the layers that share them on one side"
    );
}

#[test]
fn routes_that_cross_are_refused_with_the_name_of_their_layer() {
    let mut program = program();
    let x = embed(&mut program);
    program.enter(NetworkPart::Experts(0));
    let logits = program.push(|y| Op::TakeColumns {
        first: 0,
        width: N_EXPERTS,
        x,
        y,
    });
    let mut router = router();
    // The vector is on the host, and so is the choice; the experts are on the device.
    router.choice_bias = Some(VectorId(1));
    let routes = program.push(|y| Op::Route { router, x: logits, y });
    let choices = program.push(|y| Op::ExpertsLinear {
        experts: linear(3, WIDTH),
        routes,
        rows: ExpertInputKind::OfRows,
        x,
        y,
    });
    let rows = program.push(|y| Op::Combine {
        routes,
        x: choices,
        carried: CarriedValue::Nothing,
        y,
    });
    let layer = LayerPlacement {
        experts: Side::Device,
        ..LayerPlacement::whole(Side::Host)
    };
    assert_eq!(
        schedule(program, rows, layer).unwrap_err().to_string(),
        "a split network does not support layer 0, where experts are selected on one side and computed on the other; place the \
         layer's `experts` with its `ffn`"
    );
}

#[test]
fn rotation_with_attention_is_whole_and_names_the_layers_of_its_side() {
    use Side::{Device, Host};
    let mut program = program();
    let mut x = embed(&mut program);
    for layer_idx in 0..2 {
        program.enter(NetworkPart::Mixer(layer_idx));
        let linear = linear([1, 4][layer_idx], WIDTH);
        let [q, k, v] = [(); 3].map(|()| program.push(|y| Op::Linear { linear, x, y }));
        program.push_last(Op::StoreKv { layer_idx, k, v });
        let attention = Attention {
            layer_idx,
            n_heads: 1,
            scale: 1.0,
            is_causal: true,
            window: None,
            is_chunked: false,
            softcap: None,
            sinks: None,
            slopes: None,
        };
        x = program.push(|y| Op::Attention { attention, q, y });
    }
    let layers = [Host, Device].map(LayerPlacement::whole);
    let schedule = schedule_of(program, x, layers.to_vec()).unwrap();
    let expected = [
        "Host: Embed",
        "Host: LinearGroup",
        "Host: RopeAttention",
        "copy to Device",
        "Device: LinearGroup",
        "Device: RopeAttention",
        "Device: Sample",
    ];
    assert_eq!(words(&schedule), expected);
    let layers = schedule.iter().filter_map(|action| match action {
        Action::Run {
            op: Op::RopeAttention { heads, attention, .. },
            ..
        } => Some([heads.layer_idx, attention.layer_idx]),
        _ => None,
    });
    // Each side stores one layer.
    assert_eq!(layers.collect::<Vec<_>>(), [[0, 0], [0, 0]]);
}

#[test]
fn products_of_one_input_are_a_group_on_one_side_and_apart_on_two() {
    use Side::{Device, Host};
    let of = |layers: [Side; 2]| {
        let mut program = program();
        let x = embed(&mut program);
        program.enter(NetworkPart::Mixer(0));
        let [left, right] = [1, 4].map(|matrix| {
            let linear = linear(matrix, WIDTH);
            program.push(|y| Op::Linear { linear, x, y })
        });
        let rows = program.push(|y| Op::Join {
            n_parts: 1,
            left,
            right,
            y,
        });
        let layers = layers.map(LayerPlacement::whole);
        words(&schedule_of(program, rows, layers.to_vec()).unwrap())
    };
    let expected = [
        "Host: Embed",
        "Host: LinearGroup",
        "Host: Join",
        "copy to Device",
        "Device: Sample",
    ];
    assert_eq!(of([Host, Host]), expected);
    // The second matrix is on the device; the operations that follow belong to the host.
    let expected = [
        "Host: Embed",
        "Host: Linear",
        "copy to Device",
        "Device: Linear",
        "copy to Host",
        "Host: Join",
        "copy to Device",
        "Device: Sample",
    ];
    assert_eq!(of([Host, Device]), expected);
}

#[test]
fn a_tied_head_runs_on_the_device_where_the_table_is_not() {
    use Side::{Device, Host};
    let of = |layer: Side| {
        let mut program = program();
        let x = embed(&mut program);
        program.enter(NetworkPart::Output);
        let linear = linear(0, WIDTH);
        let rows = program.push(|y| Op::Linear { linear, x, y });
        schedule(program, rows, LayerPlacement::whole(layer)).unwrap()
    };
    let expected = [
        "Host: Embed",
        "copy to Device",
        "Device: Linear",
        "Device: Sample",
    ];
    assert_eq!(of(Host), expected);
    assert_eq!(of(Device), ["Device: Embed", "Device: Linear", "Device: Sample"]);
}

#[test]
fn a_slot_has_memory_on_the_sides_that_use_it() {
    use Side::{Device, Host};
    let mut program = program();
    let x = embed(&mut program);
    program.enter(NetworkPart::Mixer(0));
    let half = program.push(|y| Op::TakeColumns {
        first: 0,
        width: WIDTH / 2,
        x,
        y,
    });
    let x = program.push(|y| Op::Join {
        n_parts: 1,
        left: half,
        right: half,
        y,
    });
    program.enter(NetworkPart::Mixer(1));
    let linear = linear(4, WIDTH);
    let rows = program.push(|y| Op::Linear { linear, x, y });
    let bytes = |layers: [Side; 2]| {
        let layers = layers.map(LayerPlacement::whole);
        let (prepared, placement) = prepared(program.clone(), rows, layers.to_vec());
        let programs = Programs::new(prepared, &placement).unwrap();
        Side::ALL.map(|side| {
            let slots = programs.slots_on(side).flatten().map(|slot| match *slot {
                Slot::Floats { max_rows, width } => 4 * max_rows * width,
                Slot::Routes { .. } => unreachable!("there are no experts"),
            });
            slots.sum::<usize>()
        })
    };
    let whole = 4 * limits().max_batch_tokens * WIDTH;
    let half = whole / 2;
    // The halves are the host's. Two slots have whole rows in turn: those that the host reads and joins, and the product.
    assert_eq!(bytes([Host, Device]), [2 * whole + half, 2 * whole]);
    assert_eq!(bytes([Device, Device]), [0, 2 * whole + half]);
    // The device has the sampled rows, and another slot for logits.
    assert_eq!(bytes([Host, Host]), [2 * whole + half, 2 * whole]);
}
