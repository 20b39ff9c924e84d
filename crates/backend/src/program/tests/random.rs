//! Random programs: each operation takes operands that fit from those that are there.

use crate::{
    Activation, DeltaDecays, DeltaNet, KeyHeads, NetworkPart, RowSet, ShortConv, SsmScan, Temperature, Xielu,
};

use super::super::{
    CarriedValue, ExpertInputKind, Op, Program, RowCount, RowKind, Value, ValueColumns, ValueInfo,
};
use super::net::{HEAD_DIM, KV_WIDTH, N_EMBD, N_EXPERTS, N_FF, N_HEADS, N_USED, N_VOCAB, Net, attention_to};
use super::{assert_verified, fuse, narrow, slots};

/// Number of programs for each claim.
const N_PROGRAMS: u64 = 60;
/// Number of layers in the KV store.
const N_KV_LAYERS: usize = 2;

/// Numbers without structure.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A random program under construction.
struct Random {
    net: Net,
    rng: Rng,
    /// Values that operations may read: all but scratch.
    values: Vec<Value>,
    /// The rows that the next operations have.
    kind: RowKind,
}

impl Random {
    fn info(&self, value: Value) -> ValueInfo {
        self.net.program.values[value.index()]
    }

    /// Returns a value that fits, mostly a new one.
    fn pick(&mut self, fits: impl Fn(ValueInfo) -> bool) -> Option<Value> {
        let values: Vec<Value> = self
            .values
            .iter()
            .copied()
            .filter(|value| fits(self.info(*value)))
            .collect();
        let n_new = if self.rng.one_in(3) { values.len() } else { 2 };
        let last = values.len().checked_sub(1)?;
        Some(values[last - self.rng.below(n_new).min(last)])
    }

    /// Returns rows of a width, which are made if there are none.
    fn rows(&mut self, width: usize) -> Value {
        let rows = RowCount::each(self.kind);
        if let Some(found) = self.pick(|info| info == ValueInfo::Floats { rows, width }) {
            return found;
        }
        let any = self.any();
        self.linear(width, any)
    }

    /// Returns rows of any width.
    fn any(&mut self) -> Value {
        let rows = RowCount::each(self.kind);
        let found = self.pick(|info| matches!(info, ValueInfo::Floats { rows: found, .. } if found == rows));
        found.expect("there are rows from the start")
    }

    fn keep(&mut self, value: Value) -> Value {
        self.values.push(value);
        value
    }

    fn push(&mut self, op: impl FnOnce(Value) -> Op) -> Value {
        let value = self.net.program.push(op);
        self.keep(value)
    }

    fn linear(&mut self, width: usize, x: Value) -> Value {
        let name = format!("w.{}", self.net.program.ops.len());
        let y = self.net.linear(&name, width, x);
        self.keep(y)
    }

    /// Norms whole rows, or heads.
    fn norm(&mut self, x: Value) -> Value {
        let width = self.net.width(x);
        let of_heads = width.is_multiple_of(HEAD_DIM) && self.rng.one_in(3);
        let y = self
            .net
            .head_norm("norm", if of_heads { HEAD_DIM } else { width }, x);
        self.keep(y)
    }

    /// Sometimes appends an operation that has nothing to do with its neighbours.
    fn disturb(&mut self) {
        if self.rng.one_in(8) {
            self.row_by_row();
        }
    }

    fn enter_any(&mut self) {
        let part = match self.rng.below(5) {
            0 => NetworkPart::Mixer(0),
            1 => NetworkPart::Ffn(0),
            2 => NetworkPart::Experts(0),
            3 => NetworkPart::Mixer(1),
            _ => NetworkPart::Common,
        };
        self.net.enter(part);
    }

    /// Appends an operation, or several, that treat each row alike.
    fn row_by_row(&mut self) {
        if self.rng.one_in(3) {
            self.enter_any();
        }
        match self.rng.below(16) {
            0 => {
                let (x, width) = (self.any(), [HEAD_DIM, KV_WIDTH, N_EMBD][self.rng.below(3)]);
                self.linear(width, x);
            }
            1 => {
                let x = self.any();
                self.norm(x);
            }
            2 => {
                let (x, delta) = (self.rows(N_EMBD), self.rows(N_EMBD));
                self.push(|y| Op::Add {
                    scale: 0.5,
                    x,
                    delta,
                    y,
                });
            }
            3 => {
                let (x, up) = (self.rows(N_FF), self.rows(N_FF));
                let up = (!self.rng.one_in(3)).then_some(up);
                self.push(|y| Op::Activation {
                    activation: Activation::Silu,
                    x,
                    up,
                    y,
                });
            }
            4 => {
                let x = self.any();
                let width = 1 + self.rng.below(self.net.width(x));
                let first = self.net.width(x) - width;
                self.push(|y| Op::TakeColumns { first, width, x, y });
            }
            5 => {
                let (left, right) = (self.rows(KV_WIDTH), self.rows(KV_WIDTH));
                self.push(|y| Op::Join {
                    n_parts: 2,
                    left,
                    right,
                    y,
                });
            }
            6 => {
                let x = self.any();
                self.push(|y| Op::CutBelow { cutoff: 1.0, x, y });
            }
            7 => {
                let x = self.any();
                let row = self.net.vector("row", self.net.width(x));
                self.push(|y| Op::AddRow { row, x, y });
            }
            8 => {
                let x = self.any();
                let xielu = Xielu::from_trained(1.0, 1.0, 0.5, -1e-6);
                self.push(|y| Op::Xielu { xielu, x, y });
            }
            9 => {
                let x = self.rows(N_EMBD);
                let heads = self.net.products("heads", N_HEADS, [8, HEAD_DIM]);
                self.push(|y| Op::HeadsLinear {
                    heads,
                    n_heads: N_HEADS,
                    x,
                    y,
                });
            }
            10 => self.gated(),
            11 => self.half_layer(),
            12 => self.experts(),
            13 => self.routed(),
            14 => self.streams(),
            _ => {
                let x = self.any();
                self.push(|y| Op::AllReduce { x, y });
            }
        }
    }

    fn gated(&mut self) {
        let x = self.any();
        let gate = self.linear(N_FF, x);
        self.disturb();
        let up = self.linear(N_FF, x);
        self.disturb();
        let activation = Activation::GeluTanh;
        self.push(|y| Op::Activation {
            activation,
            x: gate,
            up: Some(up),
            y,
        });
    }

    /// Appends a product, its sum with the stream, a norm, and a product.
    fn half_layer(&mut self) {
        let (stream, input) = (self.rows(N_EMBD), self.any());
        let mut delta = self.linear(N_EMBD, input);
        if self.rng.one_in(3) {
            let x = delta;
            delta = self.push(|y| Op::AllReduce { x, y });
        }
        self.disturb();
        let sum = self.push(|y| Op::Add {
            scale: 1.0,
            x: stream,
            delta,
            y,
        });
        self.disturb();
        let normed = self.norm(sum);
        self.disturb();
        let width = [KV_WIDTH, N_EMBD][self.rng.below(2)];
        for _ in 0..=self.rng.below(4) {
            self.linear(width, normed);
        }
    }

    fn route(&mut self) -> Value {
        let x = self.rows(N_EXPERTS);
        let routes = self.net.route(x);
        self.keep(routes)
    }

    /// Appends experts, with a shared network or without.
    fn experts(&mut self) {
        let x = self.rows(N_EMBD);
        self.net.enter(NetworkPart::Experts(0));
        let routes = self.route();
        let mut both = [0, 1].map(|_| {
            self.disturb();
            let y = self
                .net
                .experts("up", KV_WIDTH, routes, ExpertInputKind::OfRows, x);
            self.keep(y)
        });
        if self.rng.one_in(4) {
            let x = both[0];
            both[0] = self.push(|y| Op::WeighChoices { routes, x, y });
        }
        let activation = Activation::Silu;
        let inside = self.push(|y| Op::Activation {
            activation,
            x: both[0],
            up: Some(both[1]),
            y,
        });
        let choices = self
            .net
            .experts("down", N_EMBD, routes, ExpertInputKind::OfChoices, inside);
        self.keep(choices);
        let carried = match self.rng.below(3) {
            0 => CarriedValue::Nothing,
            kind => {
                self.net.enter(NetworkPart::Ffn(0));
                let shared = if self.rng.one_in(3) {
                    self.norm(x)
                } else {
                    self.gated();
                    self.rows(N_EMBD)
                };
                match kind {
                    1 => CarriedValue::Whole(shared),
                    _ => CarriedValue::Gated(shared, self.linear(1, x)),
                }
            }
        };
        self.net.enter(NetworkPart::Experts(0));
        self.push(|y| Op::Combine {
            routes,
            x: choices,
            carried,
            y,
        });
    }

    /// Appends an operation on routes that are there.
    fn routed(&mut self) {
        let kind = self.kind;
        let is_routes = |info: ValueInfo| matches!(info, ValueInfo::Routes { rows, .. } if rows.kind == kind);
        let routes = match self.pick(is_routes) {
            Some(routes) => routes,
            None => self.route(),
        };
        let rows = RowCount { kind, times: N_USED };
        let choices =
            self.pick(|info| matches!(info, ValueInfo::Floats { rows: found, .. } if found == rows));
        match (choices, self.rng.below(3)) {
            (Some(x), 0) => {
                self.push(|y| Op::WeighChoices { routes, x, y });
            }
            (Some(x), 1) => {
                let carried = CarriedValue::Nothing;
                self.push(|y| Op::Combine {
                    routes,
                    x,
                    carried,
                    y,
                });
            }
            _ => {
                let x = self.any();
                let y = self
                    .net
                    .experts("experts", N_EMBD, routes, ExpertInputKind::OfRows, x);
                self.keep(y);
            }
        }
    }

    fn streams(&mut self) {
        let first = self.rows(HEAD_DIM);
        let others = self.rows(KV_WIDTH);
        match self.rng.below(5) {
            0 => {
                let factors = self.rows(9);
                let results = self
                    .net
                    .program
                    .push_results(|[y_first, y_others]| Op::PredictStreams {
                        factors,
                        first,
                        others,
                        y_first,
                        y_others,
                    });
                self.values.extend(results);
            }
            1 => {
                let (factors, predicted) = (self.rows(3), self.rows(HEAD_DIM));
                let results = self
                    .net
                    .program
                    .push_results(|[y_first, y_others]| Op::CorrectStreams {
                        factors,
                        predicted,
                        first,
                        others,
                        y_first,
                        y_others,
                    });
                self.values.extend(results);
            }
            2 => {
                self.push(|y| Op::AddToOthers { x: first, others, y });
            }
            3 => {
                self.push(|y| Op::MatchMagnitudes { first, others, y });
            }
            _ => {
                self.push(|y| Op::RepeatRows { n: 2, x: first, y });
            }
        }
    }

    /// Appends an operation, or several, that need all rows.
    fn over_tokens(&mut self) {
        let layer_idx = self.rng.below(N_KV_LAYERS);
        match self.rng.below(8) {
            0 | 1 => self.attention(layer_idx),
            2 => {
                let (k, v) = (self.rows(KV_WIDTH), self.rows(KV_WIDTH));
                self.net.store(layer_idx, k, v);
            }
            3 => {
                let q = self.rows(N_HEADS * HEAD_DIM);
                let attention = attention_to(layer_idx);
                self.push(|y| Op::Attention { attention, q, y });
            }
            4 => {
                let x = self.any();
                let temperature = Temperature {
                    scale: 0.1,
                    interval: 64,
                    offset: 0,
                };
                let y = self.push(|y| Op::ScaleByPosition { temperature, x, y });
                if self.rng.one_in(2) {
                    self.push(|copy| Op::Tap {
                        layer_idx,
                        x: y,
                        y: copy,
                    });
                }
            }
            5 => {
                let x = self.rows(N_EMBD);
                let conv = ShortConv {
                    state_idx: layer_idx,
                    n_channels: N_EMBD,
                    n_taps: 2,
                    weight: self.net.vector("conv", 2 * N_EMBD),
                    bias: None,
                    has_silu: false,
                };
                self.push(|y| Op::ShortConv { conv, x, y });
            }
            6 => {
                let (qkv, alpha, beta) = (self.rows(N_EMBD), self.rows(2), self.rows(2));
                let net = DeltaNet {
                    state_idx: layer_idx,
                    n_k_heads: 1,
                    n_v_heads: 2,
                    head_dim_k: 16,
                    head_dim_v: 16,
                    key_heads: KeyHeads::Tiled,
                    decays: DeltaDecays::OfHeads,
                    a: self.net.vector("a", 2),
                    dt_bias: self.net.vector("dt", 2),
                };
                self.push(|y| Op::DeltaNet {
                    net,
                    qkv,
                    alpha,
                    beta,
                    y,
                });
            }
            _ => {
                let (x, dt) = (self.rows(N_EMBD), self.rows(2));
                let scan = SsmScan {
                    state_idx: layer_idx,
                    n_heads: 2,
                    head_dim: 16,
                    n_groups: 1,
                    n_state: 8,
                    has_own_decays: false,
                    a: self.net.vector("a", 2),
                    skip: self.net.vector("skip", 2),
                    dt_bias: self.net.vector("dt", 2),
                };
                let [x, b, c] = [0, 32, 40].map(|first| ValueColumns { x, first });
                self.push(|y| Op::SsmScan { scan, x, b, c, dt, y });
            }
        }
    }

    fn attention(&mut self, layer_idx: usize) {
        let x = self.any();
        let mut q = self.linear(N_HEADS * HEAD_DIM, x);
        let mut k = self.linear(KV_WIDTH, x);
        let v = if self.rng.one_in(4) {
            k
        } else {
            self.linear(KV_WIDTH, x)
        };
        self.disturb();
        if self.rng.one_in(2) {
            q = self.norm(q);
        }
        if self.rng.one_in(2) {
            k = self.norm(k);
        }
        if !self.rng.one_in(4) {
            let rope = self.net.rotation(HEAD_DIM);
            [q, k] = [q, k].map(|x| self.push(|y| Op::Rope { rope, x, y }));
        }
        self.disturb();
        self.net.store(layer_idx, k, v);
        self.disturb();
        let attention = attention_to(layer_idx);
        let mixed = self.push(|y| Op::Attention { attention, q, y });
        self.linear(N_EMBD, mixed);
    }

    /// Continues with rows of another kind.
    fn pick_rows(&mut self, of: RowSet, kind: RowKind) {
        let n_picked = 1 + self.rng.below(3);
        let sources: Vec<Value> = (0..n_picked).map(|_| self.any()).collect();
        for x in sources {
            self.push(|y| Op::Gather { rows: of, x, y });
        }
        self.kind = kind;
    }
}

/// Returns a random program.
fn random(seed: u64) -> Program {
    let mut net = Net::with_kv(N_KV_LAYERS);
    let first = net.embed();
    let mut random = Random {
        net,
        rng: Rng(seed),
        values: vec![first],
        kind: RowKind::Tokens,
    };
    let is_pooled = random.rng.one_in(4);
    for _ in 0..2 + random.rng.below(24) {
        if random.rng.one_in(3) {
            random.over_tokens();
        } else {
            random.row_by_row();
        }
    }
    if is_pooled {
        let x = random.any();
        random.push(|y| Op::MeanOfSequences { x, y });
        random.kind = RowKind::Outputs;
    } else {
        random.pick_rows(RowSet::Outputs, RowKind::Outputs);
    }
    for _ in 0..random.rng.below(6) {
        random.row_by_row();
        if random.rng.one_in(4) {
            // All tokens are still there.
            random.kind = RowKind::Tokens;
            random.over_tokens();
            random.kind = RowKind::Outputs;
        }
    }
    random.net.enter(NetworkPart::Output);
    let rows = random.any();
    random.pick_rows(RowSet::LogitsOfOutputs, RowKind::Logits);
    let x = random.any();
    let logits = random.linear(N_VOCAB, x);
    let has_logits = !random.rng.one_in(8);
    random.net.sample(has_logits.then_some(logits), Some(rows));
    random.net.program
}

#[test]
fn random_programs_verify_and_have_many_operations() {
    let mut n_ops = 0;
    for seed in 0..N_PROGRAMS {
        let program = random(seed);
        assert_verified(&program, &format!("seed {seed}"));
        n_ops += program.ops.len();
    }
    assert!(n_ops > 30 * N_PROGRAMS as usize, "{n_ops} operations");
}

#[test]
fn random_programs_are_narrowed_for_each_variant() {
    for seed in 0..N_PROGRAMS {
        narrow::check(&random(seed), &format!("seed {seed}"));
    }
}

#[test]
fn random_programs_fuse_and_expand() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..N_PROGRAMS {
        found.extend(fuse::check(&random(seed), &format!("seed {seed}")));
    }
    assert_eq!(found.len(), 7, "{found:?}");
}

#[test]
fn random_programs_find_their_values_in_memory() {
    for seed in 0..N_PROGRAMS {
        slots::check(&random(seed), &format!("seed {seed}"));
    }
}
