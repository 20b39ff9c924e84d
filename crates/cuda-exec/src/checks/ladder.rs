//! [`FirstUse`]: what is given up of a GPU's use, step by step, until its checks pass.
//!
//! Separate from the checks, which know of no other way than the one that they are run in. Invariant: a step is taken once, so this ends.

use crate::{
    CudaExecError, Device, DeviceInfo, DeviceOptions, Launches, WideProducts,
    checks::{Finding, Needs, StepDown, check_kernels},
    driver::{EARLY_CAPABILITY, EARLY_CUDA},
    error::Result,
    modules::Target,
};

/// What was found when a GPU was first used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FirstUse {
    /// What was given up.
    pub steps: Vec<StepDown>,
    /// Why, in the same order; one more where the GPU is not used at all.
    pub findings: Vec<Finding>,
    /// Whether it is not used at all: nothing was left to give up.
    pub is_unfit: bool,
    /// Whether a kernel did not end. Nothing more can be asked of the GPU in this process, and what was given up counts from the next on.
    pub is_hung: bool,
}

impl DeviceOptions {
    /// The same less what was given up.
    #[must_use]
    pub fn without(mut self, steps: &[StepDown]) -> Self {
        for step in steps {
            match step {
                StepDown::InOrder => self.launches = Launches::InOrder,
                StepDown::NoWide => self.wide = WideProducts::Never,
                StepDown::Apart => self.reads_apart = true,
                StepDown::Eager => self.runs_eagerly = true,
            }
        }
        self
    }

    /// Whether something that could be given up is in use on such a device.
    fn uses(&self, step: StepDown, info: &DeviceInfo) -> bool {
        match step {
            StepDown::InOrder => {
                self.launches == Launches::Early
                    && info.capability >= EARLY_CAPABILITY
                    && info.cuda_version >= EARLY_CUDA
            }
            StepDown::NoWide => {
                self.wide == WideProducts::WhereThere
                    && (Target::Hopper.refusal(info.capability, info.cuda_version)).is_none()
            }
            StepDown::Apart => !self.reads_apart,
            StepDown::Eager => !self.runs_eagerly,
        }
    }
}

impl FirstUse {
    /// Takes a finding into account: gives up what takes the place of the kernel. Where a check knows none, a kernel by itself may be at fault because it
    /// began early; a model (`is_of_model`), whose steps were launched in order and not captured, because of kernels that others can take the place of.
    pub fn step_down(
        &mut self,
        finding: Finding,
        options: &DeviceOptions,
        info: &DeviceInfo,
        is_of_model: bool,
    ) -> Option<StepDown> {
        let now = options.clone().without(&self.steps);
        let in_use = |step: &StepDown| now.uses(*step, info);
        let others: &[StepDown] = if is_of_model {
            &[StepDown::NoWide, StepDown::Apart]
        } else {
            &[StepDown::InOrder]
        };
        let step = (finding.remedy.into_iter().chain(others.iter().copied())).find(in_use);
        self.findings.push(finding);
        match step {
            Some(step) => self.steps.push(step),
            None => self.is_unfit = true,
        }
        step
    }

    /// Checks the kernels that a model needs, and gives up what is at fault. `open` opens the GPU; `limit` is how long a check may wait for it.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn check_kernels(
        &mut self,
        options: &DeviceOptions,
        needs: &Needs,
        limit: std::time::Duration,
        mut open: impl FnMut(DeviceOptions) -> Result<Device>,
        mut on_step: impl FnMut(&Finding, Option<StepDown>),
    ) -> Result<(), CudaExecError> {
        while !self.is_unfit && !self.is_hung {
            let device = open(options.clone().without(&self.steps))?;
            device.limit_waits(Some(limit));
            let checked = check_kernels(&device, needs);
            device.limit_waits(None);
            let Err(finding) = checked else {
                return Ok(());
            };
            self.is_hung = device.is_abandoned();
            let step = self.step_down(finding, options, device.info(), false);
            let finding = self.findings.last().expect("it was added");
            on_step(finding, step);
        }
        Ok(())
    }
}
