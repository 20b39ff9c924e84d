//! [`FirstUseOf`] checks a GPU before a model first uses it, and stores the result.
//!
//! The load uses the features that passed. First the kernels that the model needs run on small shapes; then
//! the model's own steps run against the CPU and in each way of launching. A failed check turns off one
//! feature after the other, and finally the GPU. Invariants: a GPU that passed is not checked again for the
//! same kernels, driver and program; the user of a GPU that failed learns the kernel's name.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};
use tokenmill_backend::{BackendError, Executor, KvType};
use tokenmill_cuda_exec::{
    CudaBackend, Device, DeviceInfo, DeviceOptions, Finding, FirstUse, HeadsNeed, Launches, Needs, StepDown,
    Way, compare_steps, compare_ways, modules,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Model, ModelExecutor, ModelOptions};

use super::{machine::card, with_cuda::device_options};
use crate::{
    Error,
    compute::Compute,
    gpu::{GpuOptions, WarpgroupProducts},
    machine_memory::{available_bytes, check_available, check_memory, memory_limit},
    measurements::Measurements,
};

/// Kind of the files with the results.
const KIND: &str = "gpu-check";
/// Version of the list of checks. A GPU that passed another list is checked again.
const CHECKS: u32 = 3;
/// Longest wait of a check for the GPU. Kernels of checks take milliseconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Context length of the model that computes the reference steps on the CPU, in tokens.
const REFERENCE_CONTEXT: usize = 64;

/// The stored results for a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    steps: Vec<StepDown>,
    findings: Vec<String>,
    is_unfit: bool,
    /// Types of weights with their use, and of keys and values with their width, whose kernels passed.
    kernels: BTreeSet<String>,
    /// Kinds of models whose own steps passed.
    models: BTreeSet<String>,
}

impl Record {
    fn to_json(&self) -> Value {
        json!({
            "given_up": self.steps.iter().map(|step| step.name()).collect::<Vec<_>>(),
            "findings": self.findings,
            "unfit": self.is_unfit,
            "kernels": self.kernels,
            "models": self.models,
        })
    }

    fn from_json(values: &Value) -> Option<Self> {
        let texts = |name: &str| -> Option<Vec<String>> {
            let texts = values[name].as_array()?.iter();
            texts.map(|text| Some(text.as_str()?.to_owned())).collect()
        };
        let steps = texts("given_up")?;
        Some(Self {
            steps: (steps.iter().map(|name| StepDown::of_name(name))).collect::<Option<_>>()?,
            findings: texts("findings")?,
            is_unfit: values["unfit"].as_bool()?,
            kernels: texts("kernels")?.into_iter().collect(),
            models: texts("models")?.into_iter().collect(),
        })
    }
}

/// Checks one GPU for one model.
#[derive(Debug)]
pub(super) struct FirstUseOf<'a> {
    compute: &'a Compute,
    ordinal: usize,
    info: DeviceInfo,
    options: DeviceOptions,
    needs: Needs,
    /// The model's architecture and types, which determine the kernels of its steps.
    kind: String,
    subject: String,
    record: Record,
    is_told: bool,
}

impl<'a> FirstUseOf<'a> {
    /// Says whether GPUs are to be checked.
    pub(super) fn is_wanted(compute: &Compute) -> bool {
        !compute.gpu.is_unchecked && compute.measurements.folder.is_some()
    }

    /// Reads the stored results for a backend's GPU; `None` if it is not to be checked.
    ///
    /// # Errors
    /// Fails on an invalid model, and on a GPU that did not pass before.
    pub(super) fn of(
        model: &Model,
        (ordinal, backend): (usize, &CudaBackend),
        options: &ModelOptions,
        compute: &'a Compute,
    ) -> Result<Option<Self>, Error> {
        if !Self::is_wanted(compute) {
            return Ok(None);
        }
        // The plan lists the types of the model's matrices.
        model.plan(backend, options)?;
        let shape = model.descriptor().shape();
        let own_values = |layer: &&tokenmill_backend::LayerShape| !layer.has_latent_rows;
        let attention = (shape.layers.iter().filter(own_values)).filter_map(|layer| layer.attention);
        let heads: BTreeSet<HeadsNeed> = attention
            .map(|attention| HeadsNeed {
                dim: attention.head_dim_k,
                group: attention.n_heads / attention.n_kv_heads.max(1),
            })
            .collect();
        let needs = Needs {
            types: backend.planned_types(|usage| usage.is_factor),
            table_types: backend.planned_types(|usage| usage.is_table),
            expert_types: backend.planned_types(|usage| usage.is_of_experts),
            kv_types: [options.kv_type, options.kv_value_type.unwrap_or(options.kv_type)],
            heads: heads.into_iter().collect(),
            is_recurrent: shape.layers.iter().any(|layer| layer.state.is_some()),
            is_batch_invariant: compute.gpu.is_batch_invariant,
        };
        let info = backend.device().info().clone();
        let subject = subject_of(&info, ordinal, &compute.gpu);
        let kept = compute
            .measurements
            .of_load(compute.is_quiet)
            .find(KIND, &subject);
        let this = Self {
            compute,
            ordinal,
            options: device_options(&compute.gpu)?,
            info,
            kind: format!(
                "{} with {}",
                model.descriptor().arch,
                kernels_of(&needs).join(", ")
            ),
            needs,
            subject,
            record: kept
                .and_then(|values| Record::from_json(&values))
                .unwrap_or_default(),
            is_told: false,
        };
        if this.record.is_unfit {
            return Err(this.unfit());
        }
        Ok(Some(this))
    }

    /// Says whether nothing needs a check before loading and no feature is turned off.
    pub(super) fn is_known(&self) -> bool {
        self.record.steps.is_empty() && self.missing().is_none()
    }

    /// Returns the requested compute options without the features that are turned off.
    pub(super) fn compute(&self) -> Compute {
        let mut compute = self.compute.clone();
        for step in &self.record.steps {
            let gpu = &mut compute.gpu;
            match step {
                StepDown::InOrder => gpu.launches_in_order = true,
                StepDown::NoWide => gpu.warpgroup_products = WarpgroupProducts::Never,
                StepDown::Apart => gpu.reads_apart = true,
                StepDown::Eager => gpu.without_graphs = true,
            }
        }
        compute
    }

    /// Lists the model's needs that no check has passed yet.
    fn missing(&self) -> Option<Needs> {
        let is_new = |name: String| !self.record.kernels.contains(&name);
        let new_types = |types: &[TensorType], name: fn(TensorType) -> String| {
            let types = types.iter().copied().filter(|ty| is_new(name(*ty)));
            types.collect::<Vec<_>>()
        };
        let Needs {
            types,
            table_types,
            expert_types,
            kv_types,
            heads,
            is_recurrent,
            is_batch_invariant,
        } = &self.needs;
        let missing = Needs {
            types: new_types(types, factor_name),
            table_types: new_types(table_types, table_name),
            expert_types: new_types(expert_types, experts_name),
            kv_types: *kv_types,
            heads: (heads.iter().copied())
                .filter(|heads| is_new(attention_name(*kv_types, *heads)))
                .collect(),
            is_recurrent: *is_recurrent && is_new(RECURRENCE.to_owned()),
            is_batch_invariant: *is_batch_invariant,
        };
        if kernels_of(&missing).is_empty() {
            return None;
        }
        // A new type can make a pair with each of the others.
        let types = if missing.types.is_empty() {
            Vec::new()
        } else {
            types.clone()
        };
        Some(Needs { types, ..missing })
    }

    /// Checks the kernels that the model needs and that have not passed. It opens the GPU, which must not be open elsewhere: a failed check
    /// can lose the context for every user.
    ///
    /// # Errors
    /// Fails if the GPU must not be used.
    pub(super) fn check_kernels(&mut self) -> Result<(), Error> {
        let Some(missing) = self.missing() else {
            return Ok(());
        };
        self.say_first();
        let mut found = self.found();
        let say = |finding: &Finding, step| self.say(&about(self.ordinal, finding, step));
        let open = |options| Device::open_as(self.ordinal, options);
        (found.check_kernels(&self.options, &missing, LIMIT, open, say))
            .map_err(|error| Error::Gpu(error.into()))?;
        if !found.is_unfit && !found.is_hung {
            self.record.kernels.extend(kernels_of(&missing));
        }
        self.keep(found)
    }

    /// Checks the steps of the loaded model if those of no model of its kind have passed. Returns whether a feature was turned off, after which the
    /// model must be loaded again.
    ///
    /// # Errors
    /// Fails if the GPU must not be used.
    pub(super) fn check_model(
        &mut self,
        executor: &mut ModelExecutor,
        model: &Model,
        options: &ModelOptions,
    ) -> Result<bool, Error> {
        if self.record.models.contains(&self.kind) {
            return Ok(false);
        }
        self.say_first();
        let device = executor.backend::<CudaBackend>().device().clone();
        let now = self.options.clone().without(&self.record.steps);
        let begins_early = now.launches == Launches::Early;
        device.limit_waits(Some(LIMIT));
        // `compare_ways` finds faults that only one way of launching has.
        executor.backend_mut::<CudaBackend>().set_graphs(false);
        device.set_launches(Launches::InOrder);
        let against_cpu = match reference(model, options, self.compute) {
            Some(mut cpu) => compare_steps(executor, &mut cpu),
            None => Ok(()),
        };
        let checked = against_cpu.and_then(|()| {
            let set = |executor: &mut ModelExecutor, way: Way| {
                executor.backend_mut::<CudaBackend>().set_graphs(way.uses_graphs);
                executor
                    .backend::<CudaBackend>()
                    .device()
                    .set_launches(way.launches);
            };
            compare_ways(executor, [!now.runs_eagerly, begins_early], set, |executor| {
                executor
                    .backend::<CudaBackend>()
                    .capture_failure()
                    .map(str::to_owned)
            })
        });
        device.limit_waits(None);
        let mut found = self.found();
        match checked {
            Ok(()) => {
                self.record.models.insert(self.kind.clone());
                self.keep(found)?;
                Ok(false)
            }
            Err(finding) => {
                found.is_hung = device.is_abandoned();
                let step = found.step_down(finding, &self.options, &self.info, true);
                let finding = found.findings.last().expect("it was added");
                self.say(&about(self.ordinal, finding, step));
                self.keep(found)?;
                Ok(true)
            }
        }
    }

    fn found(&self) -> FirstUse {
        FirstUse {
            steps: self.record.steps.clone(),
            ..FirstUse::default()
        }
    }

    /// Applies and stores a finding.
    ///
    /// # Errors
    /// Fails if the GPU must not be used, or not by this process.
    fn keep(&mut self, found: FirstUse) -> Result<(), Error> {
        self.record
            .findings
            .extend(found.findings.iter().map(Finding::to_string));
        self.record.steps = found.steps;
        self.record.is_unfit = found.is_unfit;
        let measurements = self.compute.measurements.of_load(self.compute.is_quiet);
        if let Err(error) = measurements.keep(KIND, &self.subject, &self.record.to_json()) {
            self.say(&format!(
                "the check result of GPU {} cannot be stored: {error}",
                self.ordinal
            ));
        }
        if found.is_unfit {
            return Err(self.unfit());
        }
        if found.is_hung {
            return Err(
                self.refused("the GPU did not finish a check and is not used again before the next start")
            );
        }
        Ok(())
    }

    fn unfit(&self) -> Error {
        self.refused("nothing is left to turn off")
    }

    fn refused(&self, why: &str) -> Error {
        let last = self.record.findings.last().map_or("", String::as_str);
        Error::Gpu(BackendError::Failed {
            operation: "the check at the first use of the GPU",
            source: format!("{last}; {why}").into(),
        })
    }

    fn say_first(&mut self) {
        if !std::mem::replace(&mut self.is_told, true) {
            self.say(&format!(
                "first use of GPU {}: checking its kernels",
                self.ordinal
            ));
        }
    }

    fn say(&self, text: &str) {
        if let Some(observer) = self.compute.on_gpu_check {
            (observer.0)(text);
        }
    }
}

/// Names recurrent layers in records.
const RECURRENCE: &str = "recurrent layers";

fn factor_name(ty: TensorType) -> String {
    ty.name().to_owned()
}

fn table_name(ty: TensorType) -> String {
    format!("table of {}", ty.name())
}

fn experts_name(ty: TensorType) -> String {
    format!("experts of {}", ty.name())
}

fn attention_name([keys, values]: [KvType; 2], HeadsNeed { dim, group }: HeadsNeed) -> String {
    format!("attention {keys}/{values} {dim} in groups of {group}")
}

/// Names a model's needs as the stored results name passed ones.
fn kernels_of(needs: &Needs) -> Vec<String> {
    let factors = needs.types.iter().map(|&ty| factor_name(ty));
    let tables = needs.table_types.iter().map(|&ty| table_name(ty));
    let experts = needs.expert_types.iter().map(|&ty| experts_name(ty));
    let attention = (needs.heads.iter()).map(|&heads| attention_name(needs.kv_types, heads));
    let recurrence = needs.is_recurrent.then(|| RECURRENCE.to_owned());
    (factors.chain(tables).chain(experts))
        .chain(attention)
        .chain(recurrence)
        .collect()
}

/// Describes a finding in one line.
fn about(ordinal: usize, finding: &Finding, step: Option<StepDown>) -> String {
    match step {
        Some(step) => format!("GPU {ordinal}: {finding}; from now on {step}"),
        None => format!("GPU {ordinal}: {finding}; it is not used"),
    }
}

/// Describes the GPU, its driver, the program's kernels and how they are used.
fn subject_of(info: &DeviceInfo, ordinal: usize, gpu: &GpuOptions) -> String {
    // The driver's API tells only the CUDA version.
    let driver = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    format!(
        "checks {CHECKS} of kernels {:016x} of version {} on {}, {}, compute capability {:?}; driver for CUDA {:?} {}; {:?}",
        modules::fingerprint(),
        env!("CARGO_PKG_VERSION"),
        info.name,
        card(info, ordinal),
        info.capability,
        info.cuda_version,
        driver.lines().next().unwrap_or_default().trim(),
        (
            gpu.is_batch_invariant,
            gpu.cubins.is_some(),
            gpu.launches_in_order,
            gpu.warpgroup_products,
            gpu.reads_apart,
            gpu.without_graphs,
        ),
    )
}

/// Returns the stored result of a GPU's check; `None` if this program has not used the GPU with these options.
pub fn gpu_check(
    info: &DeviceInfo,
    ordinal: usize,
    gpu: &GpuOptions,
    measurements: &Measurements,
) -> Option<Value> {
    let subject = subject_of(info, ordinal, gpu);
    measurements.of_load(false).find(KIND, &subject)
}

/// Loads the same model on the CPU for a few tokens; `None` if it does not fit into memory or cannot be loaded.
fn reference(model: &Model, options: &ModelOptions, compute: &Compute) -> Option<impl Executor + use<>> {
    let options = ModelOptions {
        n_ctx: Some(REFERENCE_CONTEXT),
        max_batch_tokens: REFERENCE_CONTEXT,
        max_batch_seqs: 1,
        max_logit_rows: 1,
        n_pages: Some(REFERENCE_CONTEXT / tokenmill_backend::PAGE_TOKENS),
        n_host_pages: 0,
        n_states: options.n_states.map(|_| 1),
        adapter_bytes: 0,
        ..options.clone()
    };
    let backend = compute.cpu_backend().ok()?;
    let plan = model.plan(&backend, &options).ok()?;
    check_memory(&plan, memory_limit()).ok()?;
    check_available(&plan, available_bytes()).ok()?;
    model.load_on(backend, &options, &mut |_| {}).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_other() {
        let record = Record {
            steps: vec![StepDown::NoWide, StepDown::Eager],
            findings: vec!["products of Q4_K with 40 rows (matmul_wide_q4_k/wide_band): wrong".to_owned()],
            is_unfit: false,
            kernels: BTreeSet::from([
                "Q4_K".to_owned(),
                "attention f16/f16 128 in groups of 4".to_owned(),
            ]),
            models: BTreeSet::from(["llama with Q4_K, attention f16/f16 128 in groups of 4".to_owned()]),
        };
        assert_eq!(Record::from_json(&record.to_json()), Some(record.clone()));
        let mut other = record.to_json();
        other["given_up"] = json!(["something"]);
        assert_eq!(Record::from_json(&other), None);
        assert_eq!(Record::from_json(&json!({})), None);
    }
}
