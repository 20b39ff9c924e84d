//! The conformance suite on the CUDA backend, over the simulated device: the shipped kernels, interpreted.
//!
//! A fault of a kernel (a race, an access out of bounds, a read of uninitialized memory) loses the simulated device and
//! fails the test.

use tokenmill_cuda_exec::KvStore;
use tokenmill_testkit::{
    conformance::{self, Company, Features, RANDOM_NETWORKS, Subject},
    engines,
};

const CUDA: Subject = Subject {
    load: |_, model, options| engines::tiny(model, engines::gpu(), options),
    n_threads: &[1, 1],
    // All would take minutes, since every kernel is interpreted. CI tries all if the code under test changed.
    features: Features::Slice,
    n_random_networks: RANDOM_NETWORKS,
    // Products of few and of many rows add in different orders. For quantized weights an activation may then round to the
    // neighbouring byte, a step of 1/127 of its block's peak: below 1 % of logits, which are of size 10 here.
    company: Company::Within(0.1),
    stores: KvStore::takes,
};

/// The same, with one order of addition for every number of rows.
const INVARIANT: Subject = Subject {
    load: |_, model, options| engines::tiny(model, engines::gpu().with_batch_invariance(true), options),
    // Each try is minutes of interpreted kernels.
    n_threads: &[1],
    features: Features::Slice,
    n_random_networks: 8,
    company: Company::Bits,
    ..CUDA
};

/// Sequences do not depend on the rest of their batch, to the bit.
mod with_batch_invariance {
    use super::{INVARIANT, conformance};

    #[test]
    fn rows_do_not_depend_on_company() {
        conformance::rows_do_not_depend_on_company(&INVARIANT);
    }

    #[test]
    fn rows_of_experts_do_not_depend_on_company() {
        conformance::rows_of_experts_do_not_depend_on_company(&INVARIANT);
    }

    #[test]
    fn encoded_texts_do_not_depend_on_company() {
        conformance::encoded_texts_do_not_depend_on_company(&INVARIANT);
    }

    #[test]
    fn networks_agree_with_the_oracle() {
        conformance::networks_agree_with_the_oracle(&INVARIANT);
    }
}

macro_rules! suite {
    ($($claim:ident),* $(,)?) => {
        $(#[test] fn $claim() { conformance::$claim(&CUDA); })*
    };
}

tokenmill_testkit::conformance_claims!(suite);
