//! [`ExpertOperations`] and their arguments: how experts are chosen, and the rows that go to them.
//!
//! Separate from the other operands because only networks with experts have them. Invariant: which experts a row goes to is
//! known to the device alone, in its [`Memory::Routes`], so a step with experts is captured like any other.
//!
//! The experts of a layer are one matrix, `[n_experts * n_out, n_in]`, one expert's rows after the other's. A row that goes to
//! `n_used` experts makes as many *choices*; buffers of choices have `n_rows * n_used` rows, in an order of the
//! backend's own that lasts from one [`ExpertOperations::route`] to the next.

use crate::{BackendError, Linear, Memory, NetworkPart};

/// The operations on experts. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait ExpertOperations: Memory {
    /// Chooses the experts of each row by its logits, `[n_rows, router.n_experts]`; see [`Router`].
    fn route(
        &mut self,
        router: &Router<Self::Vector>,
        n_rows: usize,
        logits: &Self::Buffer,
        routes: &mut Self::Routes,
    ) -> Result<(), BackendError>;

    /// Prepares that a device computes `part` while the host computes the experts entered last, and says whether it will: then the
    /// caller queues the operations of `part` first, and those of the experts behind them. `rows`, `[n_rows, width]`, is what the experts
    /// read; where the answer is yes it is copied to the host, since a copy behind what is queued would wait for that.
    fn begin_next_to(
        &mut self,
        part: NetworkPart,
        rows: &Self::Buffer,
        n_rows: usize,
        width: usize,
    ) -> Result<bool, BackendError> {
        // One device computes one after the other.
        let _ = (part, rows, n_rows, width);
        Ok(false)
    }

    /// Multiplies each choice's row by the matrix of the chosen expert and adds that expert's bias: `output: [n_choices, n_out]`.
    /// Weights of experts that no row goes to are not read.
    fn experts_linear(
        &mut self,
        experts: &Linear<Self::Matrix, Self::Vector>,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Adds up what the experts of each row gave, in the order of their rank: `output[r] = carried[r] + sum_i weight[r][i] *
    /// choices[r, i]`; `choices: [n_choices, width]`, `output: [n_rows, width]`.
    fn combine(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &Self::Buffer,
        carried: Carried<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// How the experts of a row are chosen and weighed, given the row's logits `l[e]`.
///
/// Scores are `s = softmax(l)` or `s[e] = sigmoid(l[e])`. The `n_used` experts with the largest `s[e] + choice_bias[e]` are
/// chosen, of equal ones the first, within the groups where there are groups. The weight of a chosen expert is
/// `scale * expert_scales[e] * s[e]`, divided by the sum of the chosen scores if `is_normalized`. A softmax over the chosen
/// logits alone is the softmax over all, normalized.
#[derive(Clone, Copy, Debug)]
pub struct Router<V> {
    /// Experts there are.
    pub n_experts: usize,
    /// Experts that a row goes to.
    pub n_used: usize,
    /// From logits to scores.
    pub score: ExpertScore,
    /// Added to the scores for the choice alone, `[n_experts]`.
    pub choice_bias: Option<V>,
    /// The groups that a row may choose from are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of a row are divided by their sum.
    pub is_normalized: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Multiplies the weights of each expert, `[n_experts]`.
    pub expert_scales: Option<V>,
}

impl<V> Router<V> {
    /// The same router with its vectors as `view` shows them.
    pub fn map<'a, W>(&'a self, view: impl Fn(&'a V) -> W) -> Router<W> {
        Router {
            n_experts: self.n_experts,
            n_used: self.n_used,
            score: self.score,
            choice_bias: self.choice_bias.as_ref().map(&view),
            groups: self.groups,
            is_normalized: self.is_normalized,
            scale: self.scale,
            expert_scales: self.expert_scales.as_ref().map(&view),
        }
    }
}

/// What is added to the sum of a row's scores before it divides them, so that it is never 0.
pub const MIN_SCORE_SUM: f32 = 1e-20;

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScore {
    /// Scores that add up to 1.
    Softmax,
    /// Each logit by itself.
    Sigmoid,
}

/// Neighbouring experts form groups of one size; a row chooses among those of its best groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups there are; they divide the experts.
    pub n_groups: usize,
    /// Groups that a row chooses from.
    pub n_used: usize,
    /// How a group is measured, by its experts' scores with their bias.
    pub measure: GroupMeasure,
}

/// How a group of experts is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMeasure {
    /// By its best expert.
    Best,
    /// By the sum of its two best experts.
    TwoBest,
}

/// Rows that were routed.
pub struct Routed<'a, B: Memory> {
    /// Where each goes.
    pub routes: &'a B::Routes,
    /// Rows.
    pub n_rows: usize,
    /// Experts that each goes to.
    pub n_used: usize,
}

impl<B: Memory> Routed<'_, B> {
    /// Choices of all rows.
    pub fn n_choices(&self) -> usize {
        self.n_rows * self.n_used
    }
}

impl<B: Memory> Clone for Routed<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Memory> Copy for Routed<'_, B> {}

/// What the experts read.
pub enum ExpertInput<'a, T: ?Sized> {
    /// `[n_rows, n_in]`: all choices of a row read the row.
    Rows(&'a T),
    /// `[n_choices, n_in]`: each choice has a row of its own.
    Choices(&'a T),
}

impl<T: ?Sized> Clone for ExpertInput<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for ExpertInput<'_, T> {}

/// What [`ExpertOperations::combine`] keeps of the output's rows, where the result of a network shared by all tokens stands.
pub enum Carried<'a, T: ?Sized> {
    /// Nothing: they are overwritten.
    Nothing,
    /// The rows as they are.
    Whole,
    /// The rows times the sigmoid of a value each, `[n_rows, 1]`.
    Gated(&'a T),
}
