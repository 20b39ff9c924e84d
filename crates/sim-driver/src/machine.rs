//! [`Machine`]: the settings of the simulated machine and its GPUs.
//!
//! They are read once and never change. Invariant: an invalid setting stops the program, so no test passes because the
//! fault was missing.

use std::env;

use crate::{card::Card, fault::Defect};

/// The variable that describes the machine.
const VARIABLE: &str = "TOKENMILL_SIM_DRIVER";

/// Describes the simulated machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) n_devices: i32,
    /// As the driver numbers it: 12040 for 12.4.
    pub(crate) cuda_version: i32,
    pub(crate) gpu: GpuSpec,
}

/// Describes a simulated GPU.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuSpec {
    pub(crate) capability: (i32, i32),
    pub(crate) total_bytes: u64,
    /// The launch that faults.
    pub(crate) lost_launch: Option<u64>,
    pub(crate) takes_ptx: bool,
    /// Whether the driver finds its compiler.
    pub(crate) has_compiler: bool,
    /// Whether a test added it, so that it is removed when it has no user.
    pub(crate) is_added: bool,
    /// Whether it takes host memory only where a value other than zero is written.
    pub(crate) is_sparse: bool,
    /// Limits of the multiprocessors, if they differ from those of the compute capability.
    pub(crate) card: Option<Card>,
    /// Memory that the driver takes for each module.
    pub(crate) module_bytes: u64,
    pub(crate) defects: Vec<Defect>,
}

impl Default for GpuSpec {
    fn default() -> Self {
        Self {
            capability: (8, 0),
            total_bytes: 8 << 30,
            lost_launch: None,
            takes_ptx: true,
            has_compiler: true,
            is_added: false,
            is_sparse: false,
            card: None,
            module_bytes: 0,
            defects: Vec::new(),
        }
    }
}

impl GpuSpec {
    /// Returns the limits of the multiprocessors.
    pub(crate) fn card(&self) -> Card {
        self.card.unwrap_or_else(|| Card::of(self.capability))
    }
}

impl Machine {
    /// Reads the environment.
    pub(crate) fn from_env() -> Self {
        let mut machine = Self::parse(&env::var(VARIABLE).unwrap_or_default());
        if env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|visible| visible.is_empty()) {
            machine.n_devices = 0;
        }
        if env::var("CUDA_DISABLE_PTX_JIT").is_ok_and(|value| value == "1") {
            machine.gpu.has_compiler = false;
        }
        machine
    }

    /// # Panics
    /// If a setting is invalid.
    fn parse(text: &str) -> Self {
        let mut machine = Self {
            n_devices: 1,
            cuda_version: 12040,
            gpu: GpuSpec::default(),
        };
        for setting in text.split(',').filter(|setting| !setting.is_empty()) {
            let understood = machine.set(setting);
            assert!(understood.is_some(), "{VARIABLE}: `{setting}` is not understood");
        }
        machine
    }

    fn set(&mut self, setting: &str) -> Option<()> {
        let (name, value) = setting.split_once('=')?;
        let version = || -> Option<(i32, i32)> {
            let (major, minor) = value.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        match (name, value) {
            ("devices", n) => self.n_devices = n.parse().ok()?,
            ("capability", _) => self.gpu.capability = version()?,
            ("cuda", _) => {
                let (major, minor) = version()?;
                self.cuda_version = major * 1000 + minor * 10;
            }
            ("mib", n) => self.gpu.total_bytes = n.parse::<u64>().ok()? << 20,
            ("module_kib", n) => self.gpu.module_bytes = n.parse::<u64>().ok()? << 10,
            ("lose", n) => self.gpu.lost_launch = Some(n.parse().ok()?),
            ("ptx", "refused") => self.gpu.takes_ptx = false,
            ("compiler", "missing") => self.gpu.has_compiler = false,
            (name, kernel) => self.gpu.defects.push(Defect::parse(name, kernel)?),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_obeyed() {
        let machine = Machine::parse(
            "devices=2,capability=7.5,cuda=11.2,mib=3,lose=4,ptx=refused,module_kib=5,hang=add_norm",
        );
        let expected = Machine {
            n_devices: 2,
            cuda_version: 11020,
            gpu: GpuSpec {
                capability: (7, 5),
                total_bytes: 3 << 20,
                lost_launch: Some(4),
                takes_ptx: false,
                has_compiler: true,
                is_added: false,
                is_sparse: false,
                card: None,
                module_bytes: 5 << 10,
                defects: vec![Defect::Hang {
                    kernel: "add_norm".to_owned(),
                }],
            },
        };
        assert_eq!(machine, expected);
    }

    #[test]
    #[should_panic(expected = "`devices=many` is not understood")]
    fn a_setting_that_is_not_understood_stops_everything() {
        Machine::parse("capability=8.6,devices=many");
    }
}
