//! [`Kept`]: a weight in the memory of each side that computes with it, and how operations access it.
//!
//! Operands such as [`Norm`] hold their weights by value, and a side's operations take only its own operands
//! weights. So a weight is lent: taken out, put into an operand of its side for one operation, and given
//! back. Moving a weight moves its handle, not its numbers. Invariant: outside an operation every weight is
//! in its place, even after a failed one.

use std::sync::{Mutex, PoisonError};

use tokenmill_backend::{
    Attention, BackendError, DeltaNet, Linear, Norm, Rope, Router, ShortConv, Side, SsmScan,
};

/// A weight on the host, on the device, or on both.
pub struct Kept<A, B> {
    host: Lent<A>,
    device: Lent<B>,
    sides: [bool; 2],
}

impl<A, B> Kept<A, B> {
    pub(crate) fn new(host: Option<A>, device: Option<B>) -> Self {
        Self {
            sides: [host.is_some(), device.is_some()],
            host: Lent(Mutex::new(host)),
            device: Lent(Mutex::new(device)),
        }
    }

    /// Returns whether the weight is on a side.
    pub(crate) fn is_on(&self, side: Side) -> bool {
        self.sides[side as usize]
    }
}

/// A weight, or `None` while it is lent. Only the engine's thread lends weights, so the lock is always free.
struct Lent<A>(Mutex<Option<A>>);

impl<A> Lent<A> {
    fn take(&self) -> Option<A> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn give(&self, own: A) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
    }
}

/// Takes weights of one side out of [`Kept`] values and returns them.
pub(crate) trait Lender<K>: Copy {
    type Own;

    fn take(&self, kept: &K) -> Option<Self::Own>;

    fn give(&self, kept: &K, own: Self::Own);
}

/// Lends the host's weights.
#[derive(Clone, Copy)]
pub(crate) struct OfHost;

/// Lends the device's weights.
#[derive(Clone, Copy)]
pub(crate) struct OfDevice;

impl<A, B> Lender<Kept<A, B>> for OfHost {
    type Own = A;

    fn take(&self, kept: &Kept<A, B>) -> Option<A> {
        kept.host.take()
    }

    fn give(&self, kept: &Kept<A, B>, own: A) {
        kept.host.give(own);
    }
}

impl<A, B> Lender<Kept<A, B>> for OfDevice {
    type Own = B;

    fn take(&self, kept: &Kept<A, B>) -> Option<B> {
        kept.device.take()
    }

    fn give(&self, kept: &Kept<A, B>, own: B) {
        kept.device.give(own);
    }
}

type Outcome = Result<(), BackendError>;

/// Lends several weights at once; an error means that one is not on the side.
pub(crate) fn lend<K, L: Lender<K>, const N: usize>(
    lender: L,
    kept: [Option<&K>; N],
    run: impl FnOnce([Option<L::Own>; N]) -> (Outcome, [Option<L::Own>; N]),
) -> Outcome {
    let own = kept.map(|kept| kept.and_then(|kept| lender.take(kept)));
    let is_here = (kept.iter().zip(&own)).all(|(kept, own)| kept.is_some() == own.is_some());
    let (outcome, own) = if is_here { run(own) } else { (Err(not_here()), own) };
    for (kept, own) in kept.into_iter().zip(own) {
        if let (Some(kept), Some(own)) = (kept, own) {
            lender.give(kept, own);
        }
    }
    outcome
}

/// Returns the error of a network that uses a weight on a side that does not have it.
fn not_here() -> BackendError {
    BackendError::Unsupported {
        feature:
            "an operation whose weights and keys are apart; place the layers that share them on one side"
                .to_owned(),
        device: "a split network",
    }
}

const PRESENT: &str = "a weight that is there was lent";

/// Operands with weights of one side to lend.
pub(crate) trait Operand<K>: Sized {
    type Of<V>;

    fn with<L: Lender<K>>(&self, lender: L, run: impl FnOnce(&Self::Of<L::Own>) -> Outcome) -> Outcome;
}

impl<K> Operand<K> for Norm<K> {
    type Of<V> = Norm<V>;

    fn with<L: Lender<K>>(&self, lender: L, run: impl FnOnce(&Norm<L::Own>) -> Outcome) -> Outcome {
        lend(
            lender,
            [self.weight.as_ref(), self.bias.as_ref()],
            |[weight, bias]| {
                let own = Norm {
                    kind: self.kind,
                    width: self.width,
                    weight,
                    bias,
                    eps: self.eps,
                };
                (run(&own), [own.weight, own.bias])
            },
        )
    }
}

impl<K> Operand<K> for Rope<K> {
    type Of<V> = Rope<V>;

    fn with<L: Lender<K>>(&self, lender: L, run: impl FnOnce(&Rope<L::Own>) -> Outcome) -> Outcome {
        lend(lender, [Some(&self.inv_freqs)], |[inv_freqs]| {
            let own = Rope {
                style: self.style,
                head_dim: self.head_dim,
                n_dims: self.n_dims,
                inv_freqs: inv_freqs.expect(PRESENT),
                magnitude: self.magnitude,
                axes: self.axes,
            };
            (run(&own), [Some(own.inv_freqs)])
        })
    }
}

impl<K> Operand<K> for Router<K> {
    type Of<V> = Router<V>;

    fn with<L: Lender<K>>(&self, lender: L, run: impl FnOnce(&Router<L::Own>) -> Outcome) -> Outcome {
        let kept = [self.choice_bias.as_ref(), self.expert_scales.as_ref()];
        lend(lender, kept, |[choice_bias, expert_scales]| {
            let own = Router {
                n_experts: self.n_experts,
                n_used: self.n_used,
                score: self.score,
                choice_bias,
                groups: self.groups,
                is_normalized: self.is_normalized,
                scale: self.scale,
                expert_scales,
            };
            (run(&own), [own.choice_bias, own.expert_scales])
        })
    }
}

/// Operands that refer to a layer of a store, which has another index on its side.
pub(crate) trait StoreOperand<K>: Sized {
    type Of<V>;

    fn with<L: Lender<K>>(
        &self,
        lender: L,
        own_idx: usize,
        run: impl FnOnce(&Self::Of<L::Own>) -> Outcome,
    ) -> Outcome;
}

impl<K> StoreOperand<K> for Attention<K> {
    type Of<V> = Attention<V>;

    fn with<L: Lender<K>>(
        &self,
        lender: L,
        own_idx: usize,
        run: impl FnOnce(&Attention<L::Own>) -> Outcome,
    ) -> Outcome {
        lend(
            lender,
            [self.sinks.as_ref(), self.slopes.as_ref()],
            |[sinks, slopes]| {
                let own = Attention {
                    layer_idx: own_idx,
                    n_heads: self.n_heads,
                    scale: self.scale,
                    is_causal: self.is_causal,
                    window: self.window,
                    is_chunked: self.is_chunked,
                    softcap: self.softcap,
                    sinks,
                    slopes,
                };
                (run(&own), [own.sinks, own.slopes])
            },
        )
    }
}

impl<K> StoreOperand<K> for ShortConv<K> {
    type Of<V> = ShortConv<V>;

    fn with<L: Lender<K>>(
        &self,
        lender: L,
        own_idx: usize,
        run: impl FnOnce(&ShortConv<L::Own>) -> Outcome,
    ) -> Outcome {
        lend(
            lender,
            [Some(&self.weight), self.bias.as_ref()],
            |[weight, bias]| {
                let own = ShortConv {
                    state_idx: own_idx,
                    n_channels: self.n_channels,
                    n_taps: self.n_taps,
                    weight: weight.expect(PRESENT),
                    bias,
                    has_silu: self.has_silu,
                };
                (run(&own), [Some(own.weight), own.bias])
            },
        )
    }
}

impl<K> StoreOperand<K> for DeltaNet<K> {
    type Of<V> = DeltaNet<V>;

    fn with<L: Lender<K>>(
        &self,
        lender: L,
        own_idx: usize,
        run: impl FnOnce(&DeltaNet<L::Own>) -> Outcome,
    ) -> Outcome {
        lend(lender, [Some(&self.a), Some(&self.dt_bias)], |[a, dt_bias]| {
            let own = DeltaNet {
                state_idx: own_idx,
                n_k_heads: self.n_k_heads,
                n_v_heads: self.n_v_heads,
                head_dim_k: self.head_dim_k,
                head_dim_v: self.head_dim_v,
                key_heads: self.key_heads,
                decays: self.decays,
                a: a.expect(PRESENT),
                dt_bias: dt_bias.expect(PRESENT),
            };
            (run(&own), [Some(own.a), Some(own.dt_bias)])
        })
    }
}

impl<K> StoreOperand<K> for SsmScan<K> {
    type Of<V> = SsmScan<V>;

    fn with<L: Lender<K>>(
        &self,
        lender: L,
        own_idx: usize,
        run: impl FnOnce(&SsmScan<L::Own>) -> Outcome,
    ) -> Outcome {
        let kept = [Some(&self.a), Some(&self.skip), Some(&self.dt_bias)];
        lend(lender, kept, |[a, skip, dt_bias]| {
            let own = SsmScan {
                state_idx: own_idx,
                n_heads: self.n_heads,
                head_dim: self.head_dim,
                n_groups: self.n_groups,
                n_state: self.n_state,
                has_own_decays: self.has_own_decays,
                a: a.expect(PRESENT),
                skip: skip.expect(PRESENT),
                dt_bias: dt_bias.expect(PRESENT),
            };
            (run(&own), [Some(own.a), Some(own.skip), Some(own.dt_bias)])
        })
    }
}

/// Lends matrices with their biases.
pub(crate) fn with_linears<M, V, L: Lender<M> + Lender<V>, const N: usize>(
    lender: L,
    linears: [&Linear<M, V>; N],
    run: impl FnOnce(&[OwnLinear<M, V, L>; N]) -> Outcome,
) -> Outcome {
    lend(
        lender,
        linears.map(|linear| Some(&linear.matrix)),
        |mut matrices| {
            let outcome = lend(
                lender,
                linears.map(|linear| linear.bias.as_ref()),
                |mut biases| {
                    let own = std::array::from_fn(|idx| Linear {
                        matrix: matrices[idx].take().expect(PRESENT),
                        bias: biases[idx].take(),
                        n_out: linears[idx].n_out,
                        n_in: linears[idx].n_in,
                        adapter_place: linears[idx].adapter_place,
                    });
                    let outcome = run(&own);
                    for ((own, matrix), bias) in own.into_iter().zip(&mut matrices).zip(&mut biases) {
                        *matrix = Some(own.matrix);
                        *bias = own.bias;
                    }
                    (outcome, biases)
                },
            );
            (outcome, matrices)
        },
    )
}

/// A linear map of one side's weights.
pub(crate) type OwnLinear<M, V, L> = Linear<<L as Lender<M>>::Own, <L as Lender<V>>::Own>;

/// Lends the weights of up to two optional norms.
pub(crate) fn with_norms<K, L: Lender<K>>(
    lender: L,
    [first, second]: [Option<&Norm<K>>; 2],
    run: impl FnOnce([Option<&Norm<L::Own>>; 2]) -> Outcome,
) -> Outcome {
    match (first, second) {
        (None, None) => run([None, None]),
        (Some(first), None) => first.with(lender, |first| run([Some(first), None])),
        (None, Some(second)) => second.with(lender, |second| run([None, Some(second)])),
        (Some(first), Some(second)) => first.with(lender, |first| {
            second.with(lender, |second| run([Some(first), Some(second)]))
        }),
    }
}
