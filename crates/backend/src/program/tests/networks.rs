//! Small networks of each kind, written by hand in the order of their papers.

use crate::{
    Activation, DeltaDecays, DeltaNet, KeyHeads, KvLayerShape, NetworkPart, NormKind, ShortConv, SsmScan,
    Temperature, Xielu,
};

use super::super::{CarriedValue, ExpertInputKind, Op, Program, Value, ValueColumns};
use super::net::{HEAD_DIM, KV_WIDTH, N_EMBD, N_EXPERTS, N_FF, N_HEADS, N_VOCAB, Net, attention_to};

/// Returns all networks, of a number of layers.
pub(super) fn all(n_layers: usize) -> Vec<(&'static str, Program)> {
    vec![
        ("llama", llama(n_layers)),
        ("experts", experts(n_layers)),
        ("recurrent", recurrent(n_layers)),
        ("streams", streams(n_layers)),
        ("encoder", encoder(n_layers)),
        ("sharded", sharded(n_layers)),
        ("latent", latent(n_layers)),
        ("draft", draft(n_layers)),
    ]
}

impl Net {
    /// Appends the norm and the attention of a layer, with keys and values of its own; returns what is added to the stream.
    fn attend(&mut self, layer_idx: usize, has_head_norms: bool, x: Value) -> Value {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        self.enter(NetworkPart::Mixer(layer_idx));
        let x = self.norm(&name("attn_norm"), x);
        let mut q = self.linear(&name("attn_q"), N_HEADS * HEAD_DIM, x);
        let mut k = self.linear(&name("attn_k"), KV_WIDTH, x);
        let v = self.linear(&name("attn_v"), KV_WIDTH, x);
        if has_head_norms {
            q = self.head_norm(&name("attn_q_norm"), HEAD_DIM, q);
            k = self.head_norm(&name("attn_k_norm"), HEAD_DIM, k);
        }
        let rope = self.rotation(HEAD_DIM);
        let q = self.rope(rope, q);
        let k = self.rope(rope, k);
        self.store(layer_idx, k, v);
        let mixed = self.attention(attention_to(layer_idx), q);
        self.linear(&name("attn_output"), N_EMBD, mixed)
    }

    /// Appends the norm and the gated feed-forward network of a layer; returns what is added to the stream.
    fn feed_forward(&mut self, layer_idx: usize, x: Value) -> Value {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        self.enter(NetworkPart::Ffn(layer_idx));
        let x = self.norm(&name("ffn_norm"), x);
        let gate = self.linear(&name("ffn_gate"), N_FF, x);
        let up = self.linear(&name("ffn_up"), N_FF, x);
        let inside = self.activation(Activation::Silu, gate, Some(up));
        self.linear(&name("ffn_down"), N_EMBD, inside)
    }

    fn all_reduce(&mut self, x: Value) -> Value {
        self.program.push(|y| Op::AllReduce { x, y })
    }
}

/// Attention and a gated feed-forward network.
pub(super) fn llama(n_layers: usize) -> Program {
    let mut net = Net::with_kv(n_layers);
    net.enter(NetworkPart::Input);
    let mut x = net.embed();
    for layer_idx in 0..n_layers {
        let delta = net.attend(layer_idx, false, x);
        x = net.add(x, delta);
        let delta = net.feed_forward(layer_idx, x);
        x = net.add(x, delta);
    }
    net.head(x)
}

/// Norms of heads, and experts with a shared network: gated in even layers, whole in odd ones.
pub(super) fn experts(n_layers: usize) -> Program {
    let mut net = Net::with_kv(n_layers);
    net.enter(NetworkPart::Input);
    let mut x = net.embed();
    for layer_idx in 0..n_layers {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        let delta = net.attend(layer_idx, true, x);
        x = net.add(x, delta);
        net.enter(NetworkPart::Ffn(layer_idx));
        let normed = net.norm(&name("ffn_norm"), x);
        let logits = net.linear(&name("ffn_gate_inp"), N_EXPERTS, normed);
        net.enter(NetworkPart::Experts(layer_idx));
        let routes = net.route(logits);
        let gate = net.experts(
            &name("ffn_gate_exps"),
            32,
            routes,
            ExpertInputKind::OfRows,
            normed,
        );
        let up = net.experts(&name("ffn_up_exps"), 32, routes, ExpertInputKind::OfRows, normed);
        let inside = net.activation(Activation::Silu, gate, Some(up));
        let choices = net.experts(
            &name("ffn_down_exps"),
            N_EMBD,
            routes,
            ExpertInputKind::OfChoices,
            inside,
        );
        net.enter(NetworkPart::Ffn(layer_idx));
        let gate = net.linear(&name("ffn_gate_shexp"), N_FF, normed);
        let up = net.linear(&name("ffn_up_shexp"), N_FF, normed);
        let inside = net.activation(Activation::Silu, gate, Some(up));
        let shared = net.linear(&name("ffn_down_shexp"), N_EMBD, inside);
        let carried = if layer_idx % 2 == 0 {
            CarriedValue::Gated(shared, net.linear(&name("ffn_gate_inp_shexp"), 1, normed))
        } else {
            CarriedValue::Whole(shared)
        };
        net.enter(NetworkPart::Experts(layer_idx));
        let delta = net.combine(routes, choices, carried);
        net.enter(NetworkPart::Ffn(layer_idx));
        x = net.add(x, delta);
    }
    net.head(x)
}

/// A gated delta net in even layers, a state space model in odd ones.
pub(super) fn recurrent(n_layers: usize) -> Program {
    let mut net = Net::new(&[]);
    net.enter(NetworkPart::Input);
    let mut x = net.embed();
    for layer_idx in 0..n_layers {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        net.enter(NetworkPart::Mixer(layer_idx));
        let normed = net.norm(&name("attn_norm"), x);
        let is_delta = layer_idx % 2 == 0;
        let n_channels = if is_delta { 128 } else { 96 };
        let input = net.linear(&name("ssm_in"), n_channels, normed);
        let conv = ShortConv {
            state_idx: layer_idx,
            n_channels,
            n_taps: 4,
            weight: net.vector(&name("ssm_conv1d.weight"), n_channels * 4),
            bias: (!is_delta).then(|| net.vector(&name("ssm_conv1d.bias"), n_channels)),
            has_silu: true,
        };
        let mixed = net.program.push(|y| Op::ShortConv { conv, x: input, y });
        let mixed = if is_delta {
            let alpha = net.linear(&name("ssm_alpha"), 4, normed);
            let beta = net.linear(&name("ssm_beta"), 4, normed);
            let delta = DeltaNet {
                state_idx: layer_idx,
                n_k_heads: 2,
                n_v_heads: 4,
                head_dim_k: 16,
                head_dim_v: 16,
                key_heads: KeyHeads::Grouped,
                decays: DeltaDecays::OfHeads,
                a: net.vector(&name("ssm_a"), 4),
                dt_bias: net.vector(&name("ssm_dt.bias"), 4),
            };
            net.program.push(|y| Op::DeltaNet {
                net: delta,
                qkv: mixed,
                alpha,
                beta,
                y,
            })
        } else {
            let dt = net.linear(&name("ssm_dt"), 4, normed);
            let scan = SsmScan {
                state_idx: layer_idx,
                n_heads: 4,
                head_dim: 16,
                n_groups: 2,
                n_state: 8,
                has_own_decays: false,
                a: net.vector(&name("ssm_a"), 4),
                skip: net.vector(&name("ssm_d"), 4),
                dt_bias: net.vector(&name("ssm_dt.bias"), 4),
            };
            let [x, b, c] = [0, 64, 80].map(|first| ValueColumns { x: mixed, first });
            net.program.push(|y| Op::SsmScan { scan, x, b, c, dt, y })
        };
        let mixed = net.head_norm(&name("ssm_norm"), 16, mixed);
        let gate = net.linear(&name("attn_gate"), 64, normed);
        let gated = net.activation(Activation::Silu, gate, Some(mixed));
        let delta = net.linear(&name("ssm_out"), N_EMBD, gated);
        x = net.add(x, delta);
        let delta = net.feed_forward(layer_idx, x);
        x = net.add(x, delta);
    }
    net.head(x)
}

/// Four streams, of which the first goes through the layers. All layers but the first attend to the first one's keys.
pub(super) fn streams(n_layers: usize) -> Program {
    let mut net = Net::with_kv(1);
    net.enter(NetworkPart::Input);
    let embedded = net.embed();
    let mut first = embedded;
    let repeated = net.program.push(|y| Op::RepeatRows { n: 3, x: first, y });
    let mut others = net.program.push(|y| Op::MatchMagnitudes {
        first,
        others: repeated,
        y,
    });
    for layer_idx in 0..n_layers {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        net.enter(NetworkPart::Mixer(layer_idx));
        let factors = net.linear(&name("altup_predict"), 16, first);
        let [predicted, moved] = net
            .program
            .push_results(|[y_first, y_others]| Op::PredictStreams {
                factors,
                first,
                others,
                y_first,
                y_others,
            });
        let delta = if layer_idx == 0 {
            net.attend(layer_idx, true, predicted)
        } else {
            let normed = net.norm(&name("attn_norm"), predicted);
            let q = net.linear(&name("attn_q"), N_HEADS * HEAD_DIM, normed);
            let rope = net.rotation(HEAD_DIM);
            let q = net.rope(rope, q);
            let mixed = net.attention(attention_to(0), q);
            net.linear(&name("attn_output"), N_EMBD, mixed)
        };
        let x = net.add(predicted, delta);
        let delta = net.feed_forward(layer_idx, x);
        let x = net.add(x, delta);
        let factors = net.linear(&name("altup_correct"), 4, x);
        [first, others] = net
            .program
            .push_results(|[y_first, y_others]| Op::CorrectStreams {
                factors,
                predicted,
                first: x,
                others: moved,
                y_first,
                y_others,
            });
        let row = net.vector(&name("altup_scale"), N_EMBD);
        let scaled = net.norm(&name("altup_norm"), first);
        let scaled = net.program.push(|y| Op::MultiplyByRow { row, x: scaled, y });
        others = net.program.push(|y| Op::AddToOthers { x: scaled, others, y });
    }
    let other = net.columns(N_EMBD, N_EMBD, others);
    let x = net.add(first, other);
    let x = net.program.push(|y| Op::Scale {
        scale: 0.5,
        cap: None,
        x,
        y,
    });
    net.head(x)
}

/// An encoder with learned positions, norms after sums, and the mean of each sequence as its result.
pub(super) fn encoder(n_layers: usize) -> Program {
    let mut net = Net::with_kv(1);
    let layer_norm = |net: &mut Net, name: &str, x| {
        let mut norm = net.rms(name, N_EMBD);
        norm.kind = NormKind::Layer;
        norm.bias = Some(net.vector(&format!("{name}.bias"), N_EMBD));
        net.program.push(|y| Op::Norm { norm, x, y })
    };
    net.enter(NetworkPart::Input);
    let x = net.embed();
    let row = net.vector("token_types", N_EMBD);
    let x = net.program.push(|y| Op::AddRow { row, x, y });
    let table = net.vector("position_embd", 32 * N_EMBD);
    let x = net.program.push(|y| Op::AddPositions { table, x, y });
    let mut x = layer_norm(&mut net, "token_embd_norm", x);
    for layer_idx in 0..n_layers {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        net.enter(NetworkPart::Mixer(layer_idx));
        let q = net.biased(&name("attn_q"), N_HEADS * HEAD_DIM, x);
        let k = net.biased(&name("attn_k"), KV_WIDTH, x);
        let v = net.biased(&name("attn_v"), KV_WIDTH, x);
        net.store(0, k, v);
        let mut attention = attention_to(0);
        attention.is_causal = false;
        let mixed = net.attention(attention, q);
        let delta = net.biased(&name("attn_output"), N_EMBD, mixed);
        let sum = net.add(x, delta);
        x = layer_norm(&mut net, &name("attn_output_norm"), sum);
        net.enter(NetworkPart::Ffn(layer_idx));
        let inside = net.biased(&name("ffn_up"), N_FF, x);
        let inside = net.activation(Activation::GeluErf, inside, None);
        let delta = net.biased(&name("ffn_down"), N_EMBD, inside);
        let sum = net.add(x, delta);
        x = layer_norm(&mut net, &name("layer_output_norm"), sum);
    }
    net.enter(NetworkPart::Output);
    let mean = net.program.push(|y| Op::MeanOfSequences { x, y });
    let pooled = net.biased("cls", N_EMBD, mean);
    net.sample(None, Some(pooled));
    net.program
}

/// A rank's part of a divided network.
pub(super) fn sharded(n_layers: usize) -> Program {
    let mut net = Net::with_kv(n_layers);
    net.enter(NetworkPart::Input);
    let mut x = net.embed();
    for layer_idx in 0..n_layers {
        let delta = net.attend(layer_idx, false, x);
        let delta = net.all_reduce(delta);
        x = net.add(x, delta);
        let delta = net.feed_forward(layer_idx, x);
        let delta = net.all_reduce(delta);
        x = net.add(x, delta);
    }
    net.enter(NetworkPart::Output);
    let x = net.gather(crate::RowSet::Outputs, x);
    let normed = net.norm("output_norm", x);
    let picked = net.gather(crate::RowSet::LogitsOfOutputs, normed);
    let own = net.linear("output", N_VOCAB / 2 + 4, picked);
    let [_, logits] = net.program.push_results(|[parts, y]| Op::AllGather {
        n_ranks: 2,
        width: N_VOCAB,
        x: own,
        parts,
        y,
    });
    net.sample(Some(logits), Some(normed));
    net.program
}

/// Latent attention, and experts that get weighted inputs.
pub(super) fn latent(n_layers: usize) -> Program {
    let layer = KvLayerShape {
        n_kv_heads: 1,
        head_dim_k: 40,
        head_dim_v: 32,
        has_values_in_keys: true,
    };
    let mut net = Net::new(&vec![layer; n_layers]);
    net.enter(NetworkPart::Input);
    let mut x = net.embed();
    for layer_idx in 0..n_layers {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        let heads_linear = |net: &mut Net, part: &str, [n_out, n_in]: [usize; 2], x| {
            let heads = net.products(&name(part), N_HEADS, [n_out, n_in]);
            let n_heads = N_HEADS;
            net.program.push(|y| Op::HeadsLinear { heads, n_heads, x, y })
        };
        net.enter(NetworkPart::Mixer(layer_idx));
        let normed = net.norm(&name("attn_norm"), x);
        let rope = net.rotation(8);
        let q = net.linear(&name("attn_q"), N_HEADS * HEAD_DIM, normed);
        let latent_q = heads_linear(&mut net, "attn_k_b", [32, HEAD_DIM], q);
        let turned_q = net.linear(&name("attn_q_rope"), N_HEADS * 8, normed);
        let turned_q = net.rope(rope, turned_q);
        let q = net.join(N_HEADS, latent_q, turned_q);
        let both = net.linear(&name("attn_kv_a_mqa"), 40, normed);
        let latent = net.columns(0, 32, both);
        let latent = net.norm(&name("attn_kv_a_norm"), latent);
        let turned_k = net.columns(32, 8, both);
        let turned_k = net.rope(rope, turned_k);
        let row = net.join(1, latent, turned_k);
        net.program.push_last(Op::StoreLatent { layer_idx, row });
        let mixed = net.attention(attention_to(layer_idx), q);
        let mixed = heads_linear(&mut net, "attn_v_b", [HEAD_DIM, 32], mixed);
        let delta = net.linear(&name("attn_output"), N_EMBD, mixed);
        x = net.add(x, delta);
        net.enter(NetworkPart::Ffn(layer_idx));
        let normed = net.norm(&name("ffn_norm"), x);
        let logits = net.linear(&name("ffn_gate_inp"), N_EXPERTS, normed);
        net.enter(NetworkPart::Experts(layer_idx));
        let routes = net.route(logits);
        let gate = net.experts(
            &name("ffn_gate_exps"),
            32,
            routes,
            ExpertInputKind::OfRows,
            normed,
        );
        let gate = net.program.push(|y| Op::WeighChoices { routes, x: gate, y });
        let up = net.experts(&name("ffn_up_exps"), 32, routes, ExpertInputKind::OfRows, normed);
        let inside = net.activation(Activation::Silu, gate, Some(up));
        let choices = net.experts(
            &name("ffn_down_exps"),
            N_EMBD,
            routes,
            ExpertInputKind::OfChoices,
            inside,
        );
        let delta = net.combine(routes, choices, CarriedValue::Nothing);
        net.enter(NetworkPart::Ffn(layer_idx));
        x = net.add(x, delta);
    }
    net.head(x)
}

/// A draft network, which reads hidden states and input rows, scales queries, and keeps the rows of its layers.
pub(super) fn draft(n_layers: usize) -> Program {
    let mut net = Net::with_kv(n_layers);
    net.enter(NetworkPart::Input);
    let embedded = net.embed();
    let embedded = net.program.push(|y| Op::AddInputRows {
        part: 0,
        x: embedded,
        y,
    });
    let width = N_EMBD;
    let hidden = net.program.push(|y| Op::HiddenInputs { width, y });
    let hidden = net.norm("nextn.hnorm", hidden);
    let both = net.join(1, embedded, hidden);
    let mut x = net.linear("nextn.eh_proj", N_EMBD, both);
    for layer_idx in 0..n_layers {
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        net.enter(NetworkPart::Mixer(layer_idx));
        let normed = net.norm(&name("attn_norm"), x);
        let q = net.linear(&name("attn_q"), N_HEADS * HEAD_DIM, normed);
        let k = net.linear(&name("attn_k"), KV_WIDTH, normed);
        let v = net.linear(&name("attn_v"), KV_WIDTH, normed);
        let rope = net.rotation(HEAD_DIM);
        let q = net.rope(rope, q);
        let k = net.rope(rope, k);
        net.store(layer_idx, k, v);
        let temperature = Temperature {
            scale: 0.1,
            interval: 8192,
            offset: 0,
        };
        let q = net.program.push(|y| Op::ScaleByPosition { temperature, x: q, y });
        let mixed = net.attention(attention_to(layer_idx), q);
        let delta = net.linear(&name("attn_output"), N_EMBD, mixed);
        x = net.add(x, delta);
        net.enter(NetworkPart::Ffn(layer_idx));
        let normed = net.norm(&name("ffn_norm"), x);
        let inside = net.linear(&name("ffn_up"), N_FF, normed);
        let cutoff = 1.5;
        let inside = net.program.push(|y| Op::CutBelow { cutoff, x: inside, y });
        let xielu = Xielu {
            alpha_p: 1.0,
            alpha_n: 0.5,
            beta: 0.5,
            eps: -1e-6,
        };
        let inside = net.program.push(|y| Op::Xielu { xielu, x: inside, y });
        let delta = net.linear(&name("ffn_down"), N_EMBD, inside);
        x = net.add(x, delta);
        if layer_idx == 0 {
            net.program.push(|y| Op::Tap { layer_idx, x, y });
        }
    }
    net.head(x)
}
