//! [`FfnDescriptor`]: how a layer works on each position by itself.
//!
//! Separate from the layer because each kind brings its own sizes and checks. Invariant: a kind's descriptor that passed
//! [`FfnDescriptor::validate`] can be built and run.

use tokenmill_backend::{Activation, ExpertGroups, ExpertScore, ExpertsShape, Xielu};

use crate::{LoadError, error::check};

use super::{MAX_WIDTH, Presence, WIDTH};

/// The feed-forward network of one layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnDescriptor {
    /// The layer is a mixer alone.
    None,
    /// One network for all tokens.
    Dense(DenseDescriptor),
    /// Experts, of which each token goes to a few.
    Moe(MoeDescriptor),
    /// A dense network and experts next to each other.
    Beside(BesideDescriptor),
}

impl FfnDescriptor {
    /// The network that all tokens go through, where there is one: a dense one, or the one next to experts.
    pub fn dense(&self) -> Option<&DenseDescriptor> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::Moe(moe) => moe.shared.as_ref().map(|shared| &shared.dense),
            Self::Beside(beside) => Some(&beside.dense),
            Self::None => None,
        }
    }

    /// The experts, where there are any.
    pub fn moe(&self) -> Option<&MoeDescriptor> {
        match self {
            Self::Dense(_) | Self::None => None,
            Self::Moe(moe) => Some(moe),
            Self::Beside(beside) => Some(&beside.moe),
        }
    }

    /// Whether the layer has none.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Width of the widest row that one of its matrices reads.
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

/// A dense network and experts next to each other, each with a norm of its own behind it. The dense one reads what the layer's
/// norm gives. The experts read the stream through two more norms, one for the choice and one for the experts themselves.
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
    /// How experts are chosen.
    pub router: RouterDescriptor,
    /// Width inside each expert.
    pub n_ff: usize,
    /// Their function.
    pub activation: Activation,
    /// Whether each has a gate.
    pub is_gated: bool,
    /// Biases of their matrices.
    pub bias: Presence,
    /// Whether a weight multiplies what its expert reads, instead of what it gives.
    pub weighs_input: bool,
    /// Where experts work on narrower rows than the stream's: their width, and biases of the two matrices around them.
    pub latent: Option<LatentExperts>,
    /// A network that every token goes through in addition.
    pub shared: Option<SharedDescriptor>,
}

/// The narrower rows that experts read and give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentExperts {
    /// Their width.
    pub width: usize,
    /// Biases of the matrices from the stream and back to it.
    pub bias: Presence,
}

/// How the experts of a token are chosen and weighed; [`Router`](tokenmill_backend::Router) has the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterDescriptor {
    /// Experts there are.
    pub n_experts: usize,
    /// Experts that a token goes to.
    pub n_used: usize,
    /// From logits to scores.
    pub score: ExpertScore,
    /// Whether the logits have a bias.
    pub bias: Presence,
    /// Whether a bias is added to the scores for the choice alone.
    pub choice_bias: Presence,
    /// The groups that are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of a token are divided by their sum.
    pub is_normalized: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Whether each expert has a factor of its own for its weights.
    pub expert_scales: Presence,
}

/// The network next to the experts that every token goes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedDescriptor {
    /// The network.
    pub dense: DenseDescriptor,
    /// Whether its result is multiplied with the sigmoid of one more product of the input.
    pub has_gate: bool,
}

/// More experts than any network has; a larger count must not size a list.
const MAX_EXPERTS: usize = 1 << 16;

impl MoeDescriptor {
    /// The sizes that a backend prepares for.
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

/// More groups than any network has.
const MAX_GROUPS: usize = 1024;

/// A feed-forward network that computes all of its width for every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseDescriptor {
    /// Width inside.
    pub n_ff: usize,
    /// Its function, unless that is xIELU.
    pub activation: Activation,
    /// Where the numbers of xIELU are, which then is its function. There is no gate.
    pub xielu: Option<XieluNumbers>,
    /// How many standard deviations over the mean of a row the gate begins, before its function; see
    /// [`LayerOperations::cut_below`](tokenmill_backend::LayerOperations::cut_below).
    pub cutoff: Option<f32>,
    /// Whether there is a gate: `down(f(gate(x)) * up(x))` instead of `down(f(up(x)))`.
    pub is_gated: bool,
    /// Which rows come first where a tensor has both, the gate's and those of `up`.
    pub joined: GateUpOrder,
    /// Biases of its matrices.
    pub bias: Presence,
}

/// The order of rows in a tensor `ffn_up` that has those of the gate too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUpOrder {
    /// All of the gate, then all of `up`.
    GateFirst,
    /// All of `up`, then all of the gate.
    UpFirst,
}

/// Where the trained numbers of xIELU are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum XieluNumbers {
    /// In the metadata, which gave these.
    Known(Xielu),
    /// In tensors of the layer.
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
