//! Sets of instruction sets: their names, and which are left after a choice.

use tokenmill_quant::{CpuFeatures, Isa, QuantError};

#[test]
fn every_path_reads_back_from_its_name() {
    for features in CpuFeatures::each_path().chain([CpuFeatures::detect()]) {
        assert_eq!(features.to_string().parse(), Ok(features));
    }
}

/// Says whether the processor has each instruction that kernels for `isa` may use.
#[cfg(target_arch = "x86_64")]
fn is_on_this_processor(isa: Isa) -> bool {
    macro_rules! has {
        ($($feature:tt),+) => { $(is_x86_feature_detected!($feature))&&+ };
    }
    let avx2 = has!("avx2", "fma", "f16c");
    match isa {
        Isa::Avx2 => avx2,
        Isa::AvxVnni => avx2 && has!("avxvnni"),
        Isa::Avx512Vnni => avx2 && has!("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"),
        Isa::Neon | Isa::Dotprod | Isa::I8mm => false,
    }
}

/// Says whether the processor has each instruction that kernels for `isa` may use.
#[cfg(target_arch = "aarch64")]
fn is_on_this_processor(isa: Isa) -> bool {
    macro_rules! has {
        ($($feature:tt),+) => { $(std::arch::is_aarch64_feature_detected!($feature))&&+ };
    }
    match isa {
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => false,
        Isa::Neon => has!("neon"),
        Isa::Dotprod => has!("neon", "dotprod"),
        Isa::I8mm => has!("neon", "dotprod", "i8mm"),
    }
}

/// Says that other processors have none.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_on_this_processor(_: Isa) -> bool {
    false
}

#[test]
fn only_and_without_never_add() {
    let detected = CpuFeatures::detect();
    for isa in Isa::ALL {
        assert!(!CpuFeatures::scalar().only(isa).has(isa));
        assert!(!detected.without(isa).has(isa));
        assert_eq!(detected.only(isa).has(isa), is_on_this_processor(isa), "{isa}");
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
