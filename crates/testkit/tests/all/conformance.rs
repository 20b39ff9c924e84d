//! The conformance suite on the backends that every machine has.

use tokenmill_cpu_exec::CpuBackend;
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{
    NaiveBackend,
    conformance::{self, Company, Features, RANDOM_NETWORKS, Subject},
    engines,
};

const CPU: Subject = Subject {
    load: |n_threads, model, options| engines::tiny(model, engines::cpu(n_threads), options),
    n_threads: &[1, 2, 3, 5],
    features: Features::All,
    n_random_networks: RANDOM_NETWORKS,
    company: Company::Bits,
    stores: |_| true,
};

const SCALAR: Subject = Subject {
    load: |n_threads, model, options| {
        let backend = CpuBackend::new(Some(n_threads), CpuFeatures::scalar()).expect("a few threads");
        engines::tiny(model, backend, options)
    },
    // The threads are those of the subject before.
    n_threads: &[1, 3],
    features: Features::All,
    n_random_networks: RANDOM_NETWORKS,
    company: Company::Bits,
    stores: |_| true,
};

const NAIVE: Subject = Subject {
    load: |_, model, options| engines::tiny(model, NaiveBackend::new(), options),
    n_threads: &[1, 2, 3, 5],
    features: Features::All,
    n_random_networks: RANDOM_NETWORKS,
    company: Company::Bits,
    stores: |_| true,
};

macro_rules! suite {
    ($($claim:ident),* $(,)?) => {
        mod cpu {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&CPU); })*
        }
        mod scalar {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&SCALAR); })*
        }
    };
}

tokenmill_testkit::conformance_claims!(suite);

macro_rules! naive {
    ($($claim:ident),* $(,)?) => {
        mod naive {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&NAIVE); })*
        }
    };
}

// Without the claims that compare with the oracle: the naive backend is the oracle.
naive! {
    rows_of_experts_do_not_depend_on_company,
    rows_do_not_depend_on_company,
    only_the_rows_asked_for_come_back,
    sampled_rows_feed_the_next_step,
    copied_pages_hold_what_they_were_copied_from,
    snapshots_hold_the_state_between_two_tokens,
    a_row_that_is_not_finite_fails_alone,
    encoded_texts_do_not_depend_on_company,
}

#[test]
fn every_variant_changes_what_the_oracle_says() {
    conformance::every_variant_changes_what_the_oracle_says();
}

#[test]
fn every_encoder_differs_from_the_plain_one() {
    conformance::every_encoder_differs_from_the_plain_one();
}

#[test]
fn variants_of_a_claim_have_different_names() {
    conformance::variants_of_a_claim_have_different_names();
}
