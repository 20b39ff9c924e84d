//! Networks that together have every feature of experts that a descriptor can name. Each changes one thing of
//! [`tiny_experts`].

use tokenmill_backend::{Activation, ExpertGroups, ExpertScore, GroupMeasure};
use tokenmill_model::{
    BesideDescriptor, DenseDescriptor, Descriptor, FfnDescriptor, LatentExperts, MoeDescriptor, Presence,
    RouterDescriptor, SharedDescriptor,
};

use crate::{tiny_model::tiny_llama, variants::Variant};

/// Describes [`tiny_llama`] with 8 experts in each layer, 32 wide, of which a token uses 3.
pub fn tiny_experts() -> Descriptor {
    let mut descriptor = tiny_llama();
    for layer in &mut descriptor.layers {
        layer.ffn = FfnDescriptor::Moe(MoeDescriptor {
            router: RouterDescriptor {
                n_experts: 8,
                n_used: 3,
                score: ExpertScore::Softmax,
                bias: Presence::Absent,
                choice_bias: Presence::Absent,
                groups: None,
                is_normalized: true,
                scale: 1.0,
                expert_scales: Presence::Absent,
            },
            n_ff: 32,
            activation: Activation::Silu,
            is_gated: true,
            bias: Presence::Absent,
            weighs_input: false,
            latent: None,
            shared: None,
        });
    }
    descriptor
}

/// Variants with one feature each.
pub const EXPERT_VARIANTS: &[Variant] = &[
    ("weights that are not normalized", |d| {
        all(d, |moe| moe.router.is_normalized = false);
    }),
    ("sigmoid scores", |d| {
        all(d, |moe| moe.router.score = ExpertScore::Sigmoid);
    }),
    ("sigmoid scores that are not normalized", |d| {
        all(d, |moe| {
            moe.router.score = ExpertScore::Sigmoid;
            moe.router.is_normalized = false;
        });
    }),
    ("a bias of the choice", |d| {
        all(d, |moe| moe.router.choice_bias = Presence::Required);
    }),
    ("a bias of the logits", |d| {
        all(d, |moe| moe.router.bias = Presence::Required);
    }),
    ("scaled weights", |d| all(d, |moe| moe.router.scale = 2.5)),
    ("groups by their best expert", |d| {
        all(d, |moe| moe.router.groups = Some(groups(GroupMeasure::Best)));
    }),
    ("groups by their two best experts", |d| {
        all(d, |moe| {
            moe.router.score = ExpertScore::Sigmoid;
            moe.router.choice_bias = Presence::Required;
            moe.router.groups = Some(groups(GroupMeasure::TwoBest));
        });
    }),
    ("biases of the experts", |d| {
        all(d, |moe| moe.bias = Presence::Required);
    }),
    ("clipped SwiGLU with biases", |d| {
        all(d, |moe| {
            moe.activation = Activation::ClippedSwiglu;
            moe.bias = Presence::Required;
        });
    }),
    ("experts with narrower rows of their own", |d| {
        all(d, |moe| {
            moe.latent = Some(LatentExperts {
                width: 24,
                bias: Presence::Absent,
            });
        });
    }),
    ("experts with rows of their own next to a shared network", |d| {
        all(d, |moe| {
            moe.activation = Activation::ReluSquared;
            moe.is_gated = false;
            moe.latent = Some(LatentExperts {
                width: 40,
                bias: Presence::Required,
            });
            moe.shared = Some(shared(48, false));
        });
    }),
    ("squared ReLU without gate", |d| {
        all(d, |moe| {
            moe.activation = Activation::ReluSquared;
            moe.is_gated = false;
        });
    }),
    ("a shared network", |d| {
        all(d, |moe| moe.shared = Some(shared(48, false)));
    }),
    ("a shared network with a gate", |d| {
        all(d, |moe| moe.shared = Some(shared(64, true)));
    }),
    ("a dense layer first", |d| {
        d.layers[0].ffn = tiny_llama().layers[0].ffn.clone();
    }),
    ("a factor of each expert", |d| {
        all(d, |moe| moe.router.expert_scales = Presence::Required);
    }),
    ("experts next to a dense network", |d| {
        let dense = shared(48, false).dense;
        for layer in &mut d.layers {
            let FfnDescriptor::Moe(moe) = &layer.ffn else {
                return;
            };
            let moe = moe.clone();
            layer.ffn = FfnDescriptor::Beside(BesideDescriptor { dense, moe });
        }
    }),
    ("one expert of all", |d| all(d, |moe| moe.router.n_used = 1)),
    ("all experts", |d| all(d, |moe| moe.router.n_used = 8)),
    ("a single expert", |d| {
        all(d, |moe| {
            moe.router.n_experts = 1;
            moe.router.n_used = 1;
        });
    }),
    ("many experts", |d| {
        all(d, |moe| {
            moe.router.n_experts = 70;
            moe.router.n_used = 9;
        });
    }),
    ("narrow experts", |d| all(d, |moe| moe.n_ff = 12)),
    ("layers of different experts", |d| {
        let FfnDescriptor::Moe(first) = &mut d.layers[0].ffn else {
            return;
        };
        first.n_ff = 64;
        first.router.n_experts = 5;
        first.router.n_used = 2;
    }),
];

/// Variants with operations that few networks need.
pub(crate) const EXPERT_LAYER_VARIANTS: &[Variant] = &[("experts whose input is weighed", |d| {
    d.layers = tiny_experts().layers;
    all(d, |moe| {
        moe.weighs_input = true;
        moe.router.is_normalized = false;
        moe.router.score = ExpertScore::Sigmoid;
    });
})];

fn groups(measure: GroupMeasure) -> ExpertGroups {
    ExpertGroups {
        n_groups: 4,
        n_used: 2,
        measure,
    }
}

fn shared(n_ff: usize, has_gate: bool) -> SharedDescriptor {
    SharedDescriptor {
        dense: DenseDescriptor::gated(n_ff, Activation::Silu),
        has_gate,
    }
}

fn all(descriptor: &mut Descriptor, change: impl Fn(&mut MoeDescriptor)) {
    for layer in &mut descriptor.layers {
        if let FfnDescriptor::Moe(moe) = &mut layer.ffn {
            change(moe);
        }
    }
}
