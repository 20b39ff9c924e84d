//! Sets of instruction sets: their names, and which are left after a choice.

use tokenmill_quant::{CpuFeatures, Isa, QuantError};

#[test]
fn every_path_reads_back_from_its_name() {
    for features in CpuFeatures::each_path().chain([CpuFeatures::detect()]) {
        assert_eq!(features.to_string().parse(), Ok(features));
    }
}

#[test]
fn only_and_without_never_add() {
    let detected = CpuFeatures::detect();
    for isa in Isa::ALL {
        assert!(!CpuFeatures::scalar().only(isa).has(isa));
        assert!(!detected.without(isa).has(isa));
        assert_eq!(detected.only(isa).has(isa), detected.has(isa));
    }
}

#[test]
fn unknown_names_are_refused() {
    assert_eq!(
        "avx2048".parse::<CpuFeatures>(),
        Err(QuantError::UnknownIsa("avx2048".to_owned()))
    );
    assert_eq!(
        "".parse::<CpuFeatures>(),
        Err(QuantError::UnknownIsa(String::new()))
    );
}
