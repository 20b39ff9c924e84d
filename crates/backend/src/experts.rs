//! [`ExpertOperations`] and their arguments: the selection of experts, and the rows that go to them.
//!
//! Only networks with experts use them. Invariant: the experts of a row are known to the device alone, in its
//! [`Memory::Routes`], so a step with experts can be captured like any other.
//!
//! The experts of a layer are one matrix, `[n_experts * n_out, n_in]`, the rows of all experts concatenated.
//! A row that goes to `n_used` experts has as many *choices*; buffers of choices have `n_rows * n_used` rows,
//! in a backend-specific order that stays valid from one [`ExpertOperations::route`] to the next.

use crate::{BackendError, Linear, Memory};

/// The operations on experts. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait ExpertOperations: Memory {
    /// Selects the experts of each row by its logits, `[n_rows, router.n_experts]`; see [`Router`].
    fn route(
        &mut self,
        router: &Router<Self::Vector>,
        n_rows: usize,
        logits: &Self::Buffer,
        routes: &mut Self::Routes,
    ) -> Result<(), BackendError>;

    /// Multiplies each choice's row by the matrix of the chosen expert and adds that expert's bias:
    /// `output: [n_choices, n_out]`. Weights of experts without rows are not read.
    fn experts_linear(
        &mut self,
        experts: &Linear<Self::Matrix, Self::Vector>,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Sums the experts' outputs for each row, in the order of their rank:
    /// `output[r] = carried[r] + sum_i weight[r][i] * choices[r, i]`; `choices: [n_choices, width]`, `output: [n_rows, width]`.
    fn combine(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &Self::Buffer,
        carried: Carried<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// How the experts of a row are selected and weighted, given the row's logits `l[e]`.
///
/// Scores are `s = softmax(l)` or `s[e] = sigmoid(l[e])`. The `n_used` experts with the largest
/// `s[e] + choice_bias[e]` are selected, the first among equals, within the selected groups if there are groups. The
/// weight of a selected expert is `scale * expert_scales[e] * s[e]`, divided by the sum of the selected
/// scores if `is_normalized`. A softmax over the selected logits alone equals the normalized softmax over
/// all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router<V> {
    /// Number of experts.
    pub n_experts: usize,
    /// Number of experts per row.
    pub n_used: usize,
    /// The function from logits to scores.
    pub score: ExpertScore,
    /// Bias of the scores for the selection only, `[n_experts]`.
    pub choice_bias: Option<V>,
    /// The groups of experts, which are selected first.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of a row are divided by their sum.
    pub is_normalized: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Factors of each expert's weights, `[n_experts]`.
    pub expert_scales: Option<V>,
}

impl<V> Router<V> {
    /// Returns the same router with its vectors mapped by `view`.
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

/// Added to the sum of a row's scores before dividing by it, so that it is never 0.
pub const MIN_SCORE_SUM: f32 = 1e-20;

/// The function from logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScore {
    /// Softmax: scores add up to 1.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
}

/// Groups of consecutive experts, all of one size. A row selects only from its best groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; it divides the number of experts.
    pub n_groups: usize,
    /// Number of groups from which a row selects.
    pub n_used: usize,
    /// How a group is scored, from its experts' biased scores.
    pub measure: GroupMeasure,
}

/// How a group of experts is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMeasure {
    /// The score of its best expert.
    Best,
    /// The sum of its two best experts' scores.
    TwoBest,
}

/// Routed rows.
pub struct Routed<'a, B: Memory> {
    /// The routes of all rows.
    pub routes: &'a B::Routes,
    /// Number of rows.
    pub n_rows: usize,
    /// Number of experts per row.
    pub n_used: usize,
}

impl<B: Memory> Routed<'_, B> {
    /// Returns the number of choices of all rows.
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

/// The input of the experts.
pub enum ExpertInput<'a, T: ?Sized> {
    /// `[n_rows, n_in]`: all choices of a row read the row.
    Rows(&'a T),
    /// `[n_choices, n_in]`: each choice has its own row.
    Choices(&'a T),
}

impl<T: ?Sized> Clone for ExpertInput<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for ExpertInput<'_, T> {}

/// The initial value of [`ExpertOperations::combine`]'s output rows, which hold the result of the shared
/// network.
pub enum Carried<'a, T: ?Sized> {
    /// Zero: the rows are overwritten.
    Nothing,
    /// The rows unchanged.
    Whole,
    /// The rows times the sigmoid of one value each, `[n_rows, 1]`.
    Gated(&'a T),
}
