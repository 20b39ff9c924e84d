//! The conformance suite on the backends that every machine has.

use tokenmill_cpu_exec::CpuBackend;
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{
    NaiveBackend,
    conformance::{self, Company, Subject},
};

const CPU: Subject<CpuBackend> = Subject {
    make: |n_threads, _| CpuBackend::new(Some(n_threads), CpuFeatures::detect()).expect("a few threads"),
    company: Company::Bits,
    stores: |_| true,
};

const SCALAR: Subject<CpuBackend> = Subject {
    make: |n_threads, _| CpuBackend::new(Some(n_threads), CpuFeatures::scalar()).expect("a few threads"),
    company: Company::Bits,
    stores: |_| true,
};

const NAIVE: Subject<NaiveBackend> = Subject {
    make: |_, _| NaiveBackend::new(),
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

suite!(
    networks_agree_with_the_oracle,
    rounded_types_agree_with_the_oracle,
    experts_agree_with_the_oracle,
    rounded_experts_agree_with_the_oracle,
    rows_of_experts_do_not_depend_on_company,
    rows_do_not_depend_on_company,
    only_the_rows_asked_for_come_back,
    sampled_rows_feed_the_next_step,
    copied_pages_hold_what_they_were_copied_from,
    snapshots_hold_the_state_between_two_tokens,
    a_row_that_is_not_finite_fails_alone,
    encoders_agree_with_the_oracle,
    encoded_texts_do_not_depend_on_company,
);
