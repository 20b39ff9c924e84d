//! Tests a GPU: all kernels, a matrix product, and memory for a model.
//!
//! In a build without CUDA, `without_cuda.rs` replaces it.

use std::time::Instant;

use serde_json::json;
use tokenmill::{
    Error,
    gpu::{GpuOptions, gpu_check, open_gpu},
    placement::Measurements,
};
use tokenmill_backend::MemoryPlan;
use tokenmill_cuda_exec::{CudaBackend, Device, families, modules, self_test};
use tokenmill_model::{Model, ModelOptions};

use super::{Examination, Row};
use crate::model_name::cache_folder;

/// An opened GPU.
pub(super) struct Gpu(Device);

impl Gpu {
    pub(super) fn open(ordinal: usize, options: &GpuOptions) -> Result<Self, Error> {
        open_gpu(ordinal, options).map(Self)
    }

    /// Has the driver compile every kernel, and computes something.
    pub(super) fn examine(&self, found: &mut Examination) {
        let device = &self.0;
        let started = Instant::now();
        // As a load does it: the modules of a kind together, and those that are for this GPU.
        let modules: Vec<_> = modules::all()
            .into_iter()
            .filter(|module| device.takes(module.target))
            .collect();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        let loaded = device.load_modules(&names);
        let seconds = started.elapsed().as_secs_f64();
        let logs: serde_json::Map<String, serde_json::Value> = (names.iter())
            .filter_map(|&name| Some((name.to_owned(), json!(device.module_log(name)?))))
            .collect();
        let kernels = match loaded {
            Ok(()) => Ok(format!(
                "all {} modules loaded in {seconds:.2} s; a model needs those of its types, and the driver keeps them",
                names.len()
            )),
            Err(error) => Err(error.to_string()),
        };
        let tested = match self_test(device) {
            Ok(()) => Ok("a captured and replayed product of 4-bit weights is right".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        found.json.insert(
            "kernels".to_owned(),
            json!({
                "modules": names.len(),
                "seconds": seconds,
                "compiler": logs,
                "problem": kernels.as_ref().err(),
            }),
        );
        found.json.insert(
            "self_test".to_owned(),
            json!({ "passed": tested.is_ok(), "problem": tested.as_ref().err() }),
        );
        found.rows.push(Row::new("kernels", kernels));
        // The modules are there by now, or it is known why they are not.
        let families = families(device);
        for family in &families {
            found.rows.push(match &family.missing {
                None => Row::new(family.kind, Ok(family.name.to_owned())),
                // Other kernels do the same.
                Some(reason) => Row::absent(family.kind, format!("{}: {reason}", family.name)),
            });
        }
        let families: Vec<_> = (families.iter())
            .map(|family| json!({ "kind": family.kind, "family": family.name, "missing": family.missing }))
            .collect();
        found.json.insert("products".to_owned(), json!(families));
        found.rows.push(Row::new("self-test", tested));
    }

    /// Reports the result of the GPU's check at first use.
    pub(super) fn tell_first_use(&self, ordinal: usize, options: &GpuOptions, found: &mut Examination) {
        let measurements = Measurements {
            folder: cache_folder(),
            ..Measurements::default()
        };
        let record = gpu_check(self.0.info(), ordinal, options, &measurements);
        let texts = |name: &str| -> Vec<String> {
            let texts = record.as_ref().and_then(|record| record[name].as_array());
            let texts = texts.into_iter().flatten().filter_map(|text| text.as_str());
            texts.map(str::to_owned).collect()
        };
        let findings = texts("findings");
        found.rows.push(match &record {
            None => Row::absent(
                "first use",
                "no model has used it yet; its kernels are checked at the first use",
            ),
            Some(record) if record["unfit"] == true => Row::new(
                "first use",
                Err(findings.last().cloned().unwrap_or_default()),
            )
            .hint("`--device cpu` computes without it; the check runs again with another driver or with `--measure-again`"),
            Some(_) if findings.is_empty() => {
                Row::new("first use", Ok("its kernels match the CPU".to_owned()))
            }
            Some(_) => Row::new(
                "first use",
                Ok(format!(
                    "its kernels match the CPU, without {}: {}",
                    texts("given_up").join(", "),
                    findings.join("; ")
                )),
            ),
        });
        found.json.insert("gpu_check".to_owned(), json!(record));
    }

    /// The memory that a model may take, and the part that it takes.
    pub(super) fn plan(self, model: &Model, options: &ModelOptions) -> (u64, Result<MemoryPlan, Error>) {
        let backend = match CudaBackend::new(self.0) {
            Ok(backend) => backend,
            Err(error) => return (0, Err(Error::Gpu(error.into()))),
        };
        let room_bytes = backend.room_bytes().unwrap_or(0);
        (room_bytes, model.plan(&backend, options).map_err(Error::from))
    }
}
