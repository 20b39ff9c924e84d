//! [`CpuFeatures`]: the instruction sets that kernels may use.
//!
//! It is a value that callers pass, not a global, so that a test or a flag can force one path. Invariant: it
//! never contains an instruction set that the processor lacks, which makes the SIMD dispatch sound. It can
//! only be detected or narrowed.

use std::fmt;
use std::str::FromStr;

use crate::QuantError;

/// An instruction set that kernels are written for. On x86-64 each includes AVX2, FMA and F16C, on 64-bit ARM each includes
/// Advanced SIMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with the 256-bit integer dot products of AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
    /// Advanced SIMD of 64-bit ARM.
    Neon,
    /// Advanced SIMD with dot products of bytes.
    Dotprod,
    /// Advanced SIMD with those, and with products of byte matrices.
    I8mm,
}

impl Isa {
    /// All instruction sets of all architectures, the most basic first.
    pub const ALL: [Self; 6] = [
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512Vnni,
        Self::Neon,
        Self::Dotprod,
        Self::I8mm,
    ];

    /// Returns the name that [`FromStr`] parses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512Vnni => "avx512vnni",
            Self::Neon => "neon",
            Self::Dotprod => "dotprod",
            Self::I8mm => "i8mm",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    #[cfg(target_arch = "x86_64")]
    fn is_detected(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        match self {
            Self::Avx2 => avx2,
            Self::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
            Self::Avx512Vnni => {
                avx2 && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Neon | Self::Dotprod | Self::I8mm => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_detected(self) -> bool {
        let neon = std::arch::is_aarch64_feature_detected!("neon");
        let dotprod = neon && std::arch::is_aarch64_feature_detected!("dotprod");
        match self {
            Self::Avx2 | Self::AvxVnni | Self::Avx512Vnni => false,
            Self::Neon => neon,
            Self::Dotprod => dotprod,
            Self::I8mm => dotprod && std::arch::is_aarch64_feature_detected!("i8mm"),
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_detected(self) -> bool {
        false
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The instruction sets that this processor has. Scalar code is always available.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuFeatures {
    isas: u8,
}

impl CpuFeatures {
    /// Returns everything that this processor has. The standard library caches the detection, so this is
    /// cheap; still, detect once and pass the value on, so that a caller's choice reaches every kernel.
    pub fn detect() -> Self {
        Self {
            isas: (Isa::ALL.into_iter().filter(|isa| isa.is_detected())).fold(0, |set, isa| set | isa.bit()),
        }
    }

    /// Returns the set without SIMD.
    pub const fn scalar() -> Self {
        Self { isas: 0 }
    }

    /// Returns whether SIMD is disabled.
    pub const fn is_scalar(self) -> bool {
        self.isas == 0
    }

    /// Keeps `isa`, if present, and drops all others.
    #[must_use]
    pub const fn only(self, isa: Isa) -> Self {
        Self {
            isas: self.isas & isa.bit(),
        }
    }

    /// Drops `isa`.
    #[must_use]
    pub const fn without(self, isa: Isa) -> Self {
        Self {
            isas: self.isas & !isa.bit(),
        }
    }

    /// Returns whether kernels for `isa` may run.
    pub const fn has(self, isa: Isa) -> bool {
        self.isas & isa.bit() != 0
    }

    /// Returns each single path of this processor: scalar code, then each instruction set alone. For tests
    /// and benchmarks that force them in turn.
    pub fn each_path() -> impl Iterator<Item = Self> {
        let detected = Self::detect();
        let simd = Isa::ALL.into_iter().filter(move |&isa| detected.has(isa));
        std::iter::once(Self::scalar()).chain(simd.map(move |isa| detected.only(isa)))
    }
}

/// Lists the names, separated by commas: `avx2,avx512vnni`, `neon,dotprod`, or `scalar`.
impl fmt::Display for CpuFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_scalar() {
            return f.write_str("scalar");
        }
        for (i, isa) in Isa::ALL.into_iter().filter(|&isa| self.has(isa)).enumerate() {
            write!(f, "{}{isa}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for CpuFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuFeatures({self})")
    }
}

/// Parses the output of [`Display`](fmt::Display).
impl FromStr for CpuFeatures {
    type Err = QuantError;

    fn from_str(names: &str) -> Result<Self, QuantError> {
        let detected = Self::detect();
        let mut chosen = Self::scalar();
        for name in names.split(',').map(str::trim).filter(|&name| name != "scalar") {
            let isa = (Isa::ALL.into_iter().find(|isa| isa.name() == name))
                .ok_or_else(|| QuantError::UnknownIsa(name.to_owned()))?;
            if !detected.has(isa) {
                return Err(QuantError::UnavailableIsa(isa.name()));
            }
            chosen.isas |= isa.bit();
        }
        Ok(chosen)
    }
}
