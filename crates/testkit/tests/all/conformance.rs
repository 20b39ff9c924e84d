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
    n_threads: &[1, 2, 3, 5],
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
        mod naive {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&NAIVE); })*
        }
    };
}

tokenmill_testkit::conformance_claims!(suite);

#[test]
fn every_variant_changes_what_the_oracle_says() {
    conformance::every_variant_changes_what_the_oracle_says();
}

#[test]
fn every_encoder_differs_from_the_plain_one() {
    conformance::every_encoder_differs_from_the_plain_one();
}
