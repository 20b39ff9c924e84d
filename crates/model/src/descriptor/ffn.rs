//! [`FfnDescriptor`]: the part of a layer that works on each position by itself.
//!
//! Each kind has its own sizes and checks. Invariant: a descriptor that passed [`FfnDescriptor::validate`]
//! can be built and run.

use tokenmill_backend::{Activation, ExpertGroups, ExpertScore, ExpertsShape, Xielu};

use crate::{LoadError, error::check};

use super::{MAX_WIDTH, Presence, WIDTH};

/// The feed-forward network of one layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnDescriptor {
    /// None: the layer is a mixer alone.
    None,
    /// One network for all tokens.
    Dense(DenseDescriptor),
    /// Experts; each token goes to a few of them.
    Moe(MoeDescriptor),
    /// A dense network and experts in parallel.
    Beside(BesideDescriptor),
}

impl FfnDescriptor {
    /// Returns the network that all tokens go through, if there is one: a dense one, or the one next to
    /// experts.
    pub fn dense(&self) -> Option<&DenseDescriptor> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::Moe(moe) => moe.shared.as_ref().map(|shared| &shared.dense),
            Self::Beside(beside) => Some(&beside.dense),
            Self::None => None,
        }
    }

    /// Returns the experts, if there are any.
    pub fn moe(&self) -> Option<&MoeDescriptor> {
        match self {
            Self::Dense(_) | Self::None => None,
            Self::Moe(moe) => Some(moe),
            Self::Beside(beside) => Some(&beside.moe),
        }
    }

    /// Returns whether the layer has no feed-forward network.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns the width of the widest row that one of its matrices reads.
    pub fn widest_input(&self) -> usize {
        let dense = self.dense().map_or(0, |dense| dense.n_ff);
        let latent = self.moe().and_then(|moe| moe.latent);
        dense
            .max(self.moe().map_or(0, |moe| moe.n_ff))
            .max(latent.map_or(0, |latent| latent.width))
    }

    /// Checks that all sizes fit together.
    pub(super) fn validate(&self) -> Result<(), LoadError> {
        match self {
            Self::None => Ok(()),
            Self::Dense(dense) => dense.validate(),
            Self::Moe(moe) => moe.validate(),
            Self::Beside(beside) => beside.validate(),
        }
    }
}

/// A dense network and experts in parallel, each with its own norm after it. The dense network reads the
/// output of the layer's norm. The experts read the stream through two more norms: one for the router and one
/// for the experts themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct BesideDescriptor {
    /// The network that all tokens go through.
    pub dense: DenseDescriptor,
    /// The experts, without a shared network.
    pub moe: MoeDescriptor,
}

impl BesideDescriptor {
    fn validate(&self) -> Result<(), LoadError> {
        self.dense.validate()?;
        self.moe.validate()?;
        check(
            "experts next to a dense network",
            "a second network that all tokens go through",
            self.moe.shared.is_none(),
            "none",
        )
    }
}

/// A feed-forward network of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeDescriptor {
    /// The selection of experts.
    pub router: RouterDescriptor,
    /// Width inside each expert.
    pub n_ff: usize,
    /// Activation of the experts.
    pub activation: Activation,
    /// Whether each has a gate.
    pub is_gated: bool,
    /// Biases of the experts' matrices.
    pub bias: Presence,
    /// Whether the routing weight multiplies an expert's input instead of its output.
    pub weighs_input: bool,
    /// Width and biases of the projections around the experts, if these work on narrower rows than the
    /// stream's.
    pub latent: Option<LatentExperts>,
    /// A network that additionally processes every token.
    pub shared: Option<SharedDescriptor>,
}

/// The narrower rows that experts read and write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentExperts {
    /// Width of these rows.
    pub width: usize,
    /// Biases of the projections from the stream and back to it.
    pub bias: Presence,
}

/// How the experts of a token are chosen and weighed; [`Router`](tokenmill_backend::Router) has the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterDescriptor {
    /// Number of experts.
    pub n_experts: usize,
    /// Number of experts per token.
    pub n_used: usize,
    /// The function from logits to scores.
    pub score: ExpertScore,
    /// Whether the logits have a bias.
    pub bias: Presence,
    /// Whether a bias is added to the scores for the selection only.
    pub choice_bias: Presence,
    /// The groups of experts, which are selected first.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of a token are divided by their sum.
    pub is_normalized: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Whether each expert has a factor for its weights.
    pub expert_scales: Presence,
}

/// The network next to the experts that every token goes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedDescriptor {
    /// The network.
    pub dense: DenseDescriptor,
    /// Whether its result is multiplied by the sigmoid of one more product of the input.
    pub has_gate: bool,
}

/// Largest accepted number of experts. It bounds the size of lists.
const MAX_EXPERTS: usize = 1 << 16;

impl MoeDescriptor {
    /// Returns the experts next to a gated network of width `n_ff` that every token goes through.
    pub(crate) fn with_shared(mut self, n_ff: usize, has_gate: bool) -> Self {
        let dense = DenseDescriptor::gated(n_ff, self.activation);
        self.shared = Some(SharedDescriptor { dense, has_gate });
        self
    }

    /// Returns the sizes that a backend prepares for.
    pub fn shape(&self) -> ExpertsShape {
        ExpertsShape {
            n_experts: self.router.n_experts,
            n_used: self.router.n_used,
            n_ff: self.n_ff,
        }
    }

    fn validate(&self) -> Result<(), LoadError> {
        let RouterDescriptor {
            n_experts, n_used, ..
        } = self.router;
        check(
            "number of experts",
            n_experts,
            (1..=MAX_EXPERTS).contains(&n_experts),
            "between 1 and 65536",
        )?;
        check(
            "number of experts that a token goes to",
            n_used,
            (1..=n_experts).contains(&n_used),
            "between 1 and the number of experts",
        )?;
        if let Some(groups) = self.router.groups {
            let (n_groups, n_used_groups) = (groups.n_groups, groups.n_used);
            check(
                "number of groups of experts",
                n_groups,
                (1..=MAX_GROUPS).contains(&n_groups) && n_experts.is_multiple_of(n_groups),
                "a divisor of the number of experts, at most 1024",
            )?;
            check(
                "number of groups that a token chooses from",
                n_used_groups,
                (1..=n_groups).contains(&n_used_groups) && n_used_groups * (n_experts / n_groups) >= n_used,
                "enough groups for the experts that a token goes to, at most all",
            )?;
        }
        let scale = self.router.scale;
        check(
            "scale of the experts' weights",
            scale,
            scale.is_finite(),
            "a number",
        )?;
        check(
            "experts whose input is weighed",
            "no gate, biases or a clipped activation",
            !self.weighs_input
                || self.is_gated
                    && self.bias == Presence::Absent
                    && self.activation != Activation::ClippedSwiglu,
            "gated ones without biases and limits",
        )?;
        let latent = self.latent.map_or(1, |latent| latent.width);
        check(
            "width of the rows that experts read",
            latent,
            (1..=MAX_WIDTH).contains(&latent),
            WIDTH,
        )?;
        check(
            "experts with rows of their own",
            "weights of the input",
            self.latent.is_none() || !self.weighs_input,
            "weights of the result",
        )?;
        check(
            "experts with rows of their own",
            "a gate of the network next to them",
            self.latent.is_none() || self.shared.is_none_or(|shared| !shared.has_gate),
            "none",
        )?;
        check(
            "feed-forward length of the experts",
            self.n_ff,
            (1..=MAX_WIDTH).contains(&self.n_ff),
            WIDTH,
        )?;
        self.shared.map_or(Ok(()), |shared| shared.dense.validate())
    }
}

/// Largest accepted number of groups.
const MAX_GROUPS: usize = 1024;

/// A feed-forward network that uses its full width for every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseDescriptor {
    /// Inner width.
    pub n_ff: usize,
    /// Activation, unless xIELU replaces it.
    pub activation: Activation,
    /// The parameters of xIELU, if that is the activation. Such a network has no gate.
    pub xielu: Option<XieluNumbers>,
    /// Threshold of the gate in standard deviations above the mean of a row, applied before the activation;
    /// see [`LayerOperations::cut_below`](tokenmill_backend::LayerOperations::cut_below).
    pub cutoff: Option<f32>,
    /// Whether there is a gate: `down(f(gate(x)) * up(x))` instead of `down(f(up(x)))`.
    pub is_gated: bool,
    /// Order of rows in a tensor that joins gate and up.
    pub joined: GateUpOrder,
    /// Biases of its matrices.
    pub bias: Presence,
}

/// The order of rows in a tensor `ffn_up` that contains the gate too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUpOrder {
    /// All of the gate, then all of `up`.
    GateFirst,
    /// All of `up`, then all of the gate.
    UpFirst,
}

/// Where the trained parameters of xIELU come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum XieluNumbers {
    /// The metadata, which gave these.
    Known(Xielu),
    /// Tensors of the layer.
    InTensors,
}

impl DenseDescriptor {
    fn validate(&self) -> Result<(), LoadError> {
        check(
            "feed-forward network with xIELU",
            "a gate",
            self.xielu.is_none() || !self.is_gated,
            "none",
        )?;
        check(
            "activation cutoff",
            self.cutoff.unwrap_or(0.0),
            self.cutoff
                .is_none_or(|cutoff| self.is_gated && cutoff.is_finite()),
            "a number, of a network with a gate",
        )?;
        check(
            "feed-forward length",
            self.n_ff,
            (1..=MAX_WIDTH).contains(&self.n_ff),
            WIDTH,
        )
    }
}
