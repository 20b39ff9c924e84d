//! A simulated device with the kernels loaded, and small helpers for data.

use std::collections::HashMap;

use tokenmill_cuda_exec::{MatrixLayout, modules};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters, DeviceMemory, DevicePtr, LaunchConfig, Module, launch};
use tokenmill_quant::Format;
use tokenmill_testkit::Random;

/// Every type that kernels read.
pub(crate) fn types() -> impl Iterator<Item = TensorType> {
    Format::all().iter().map(Format::tensor_type)
}

pub(crate) fn is_float(ty: TensorType) -> bool {
    Format::of(ty).unwrap().is_float()
}

pub(crate) struct Sim {
    pub(crate) memory: DeviceMemory,
    modules: HashMap<String, Module>,
}

/// Quantized activations on the device.
pub(crate) struct Quantized {
    pub(crate) bytes: DevicePtr,
    pub(crate) scales: DevicePtr,
}

pub(crate) const NULL: DevicePtr = DevicePtr(0);

impl Sim {
    pub(crate) fn new() -> Self {
        Self {
            memory: DeviceMemory::new(),
            modules: HashMap::new(),
        }
    }

    pub(crate) fn bytes(&mut self, data: &[u8]) -> DevicePtr {
        self.memory.alloc_with(data).unwrap()
    }

    pub(crate) fn f32s(&mut self, data: &[f32]) -> DevicePtr {
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    pub(crate) fn u32s(&mut self, data: &[u32]) -> DevicePtr {
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// Memory that counts as never written.
    pub(crate) fn room(&mut self, bytes: usize) -> DevicePtr {
        self.memory.alloc(bytes as u64).unwrap()
    }

    pub(crate) fn read_f32s(&self, address: DevicePtr, n: usize) -> Vec<f32> {
        let bytes = self.memory.read_vec(address, 4 * n).unwrap();
        let (values, _) = bytes.as_chunks::<4>();
        values.iter().map(|value| f32::from_le_bytes(*value)).collect()
    }

    pub(crate) fn read_u32s(&self, address: DevicePtr, n: usize) -> Vec<u32> {
        let bytes = self.memory.read_vec(address, 4 * n).unwrap();
        let (values, _) = bytes.as_chunks::<4>();
        values.iter().map(|value| u32::from_le_bytes(*value)).collect()
    }

    /// Launches with every check and asserts that there are no findings.
    #[track_caller]
    pub(crate) fn launch(
        &mut self,
        module: &str,
        kernel: &str,
        grid: [usize; 3],
        block: usize,
        shared_bytes: usize,
        arguments: &Arguments,
    ) -> Counters {
        if !self.modules.contains_key(module) {
            let text = modules::ptx(module).unwrap();
            let loaded = Module::load(&text, &mut self.memory).unwrap();
            self.modules.insert(module.to_owned(), loaded);
        }
        let kernel = self.modules[module].kernel(kernel).unwrap();
        let mut config = LaunchConfig::new(grid.map(|n| n as u32), [block as u32, 1, 1]);
        config.shared_bytes = shared_bytes as u32;
        let report = launch(kernel, &self.memory, &config, arguments).unwrap();
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        report.counters
    }

    /// Returns a matrix in the layout of the kernels.
    pub(crate) fn matrix(
        &mut self,
        ty: TensorType,
        n_out: usize,
        n_in: usize,
        file_rows: &[u8],
    ) -> DevicePtr {
        let layout = MatrixLayout::of(ty, n_out, n_in).unwrap();
        let mut image = vec![0; layout.bytes()];
        layout.repack(file_rows, &mut image).unwrap();
        self.bytes(&image)
    }

    /// Rows `[n_rows, width]`, quantized by the kernel.
    pub(crate) fn quantized(&mut self, rows: &[f32], width: usize) -> Quantized {
        let n_rows = rows.len() / width;
        let x = self.f32s(rows);
        let out = self.room_quantized(n_rows, width);
        let arguments = Arguments::new()
            .ptr(x)
            .i32(width as i32)
            .ptr(out.bytes)
            .ptr(out.scales);
        let grid = [width.div_ceil(2048), n_rows, 1];
        self.launch("norm", "quantize_rows", grid, 256, 0, &arguments);
        out
    }

    pub(crate) fn room_quantized(&mut self, n_rows: usize, width: usize) -> Quantized {
        Quantized {
            bytes: self.room(n_rows * width),
            scales: self.room(n_rows * width / 32 * 8),
        }
    }

    /// Returns the values of quantized rows.
    pub(crate) fn dequantized(&self, rows: &Quantized, n_rows: usize, width: usize) -> Vec<f64> {
        let bytes = self.memory.read_vec(rows.bytes, n_rows * width).unwrap();
        let records = self
            .memory
            .read_vec(rows.scales, n_rows * width / 32 * 8)
            .unwrap();
        let n_groups = width / 32;
        let value = |index: usize| {
            let (row, group, i) = (index / width, index % width / 32, index % 32);
            let record = &records[8 * (row * n_groups + group)..][..8];
            let scale = f32::from_le_bytes(record[..4].try_into().unwrap());
            let at = row * width + (i / 16 * n_groups + group) * 16 + i % 16;
            f64::from(scale) * f64::from(bytes[at] as i8)
        };
        // The stored sums must be those of the bytes.
        for (index, record) in records.chunks(8).enumerate() {
            for half in 0..2 {
                let (row, group) = (index / n_groups, index % n_groups);
                let start = row * width + (half * n_groups + group) * 16;
                let sum: i16 = bytes[start..][..16]
                    .iter()
                    .map(|&byte| i16::from(byte as i8))
                    .sum();
                let found = i16::from_le_bytes([record[4 + 2 * half], record[5 + 2 * half]]);
                assert_eq!(found, sum, "group {index}, half {half}");
            }
        }
        (0..n_rows * width).map(value).collect()
    }
}

/// Returns a random matrix in the form of a file, and its exact values.
pub(crate) fn random_matrix(
    random: &mut Random,
    ty: TensorType,
    n_out: usize,
    n_in: usize,
) -> (Vec<u8>, Vec<f32>) {
    let format = Format::of(ty).unwrap();
    let values = random.values(n_out * n_in);
    let mut file_rows = Vec::new();
    let mut exact = vec![0.0; values.len()];
    let row_bytes = format.row_bytes(n_in).unwrap();
    for (row, out) in values.chunks(n_in).zip(exact.chunks_mut(n_in)) {
        let mut bytes = vec![0; row_bytes];
        if format.has_encoder() {
            format.quantize_row(row, &mut bytes).unwrap();
        } else {
            // Any bits are a valid block.
            bytes.fill_with(|| random.bits() as u8);
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                format.set_scales(block, 0.004, 0.0);
            }
        }
        format.dequantize_row(&bytes, out).unwrap();
        file_rows.extend(bytes);
    }
    (file_rows, exact)
}

/// Asserts that `found` is within `tolerance` of `expected`, relative to the magnitude that rounding applies
/// to.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[(f64, f64)], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (&found, &(expected, magnitude))) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= tolerance * magnitude.max(1e-30),
            "{what}: element {index} is {found}, expected {expected} (magnitude {magnitude})"
        );
    }
}

/// Does the same as [`assert_close`], for sums far below 1 too.
#[track_caller]
pub(crate) fn assert_relative(found: &[f32], expected: &[(f64, f64)], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (&found, &(expected, magnitude)) in found.iter().zip(expected) {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= tolerance * magnitude,
            "{what}: {found}, expected {expected}"
        );
    }
}
