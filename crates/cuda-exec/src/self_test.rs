//! [`self_test`]: one small computation with a known result, on any device.
//!
//! It answers whether a GPU works at all. Invariant: it runs like a decode step (upload, kernels of two modules, capture,
//! replay, download), so a GPU that passes can run steps.

use tokenmill_gguf::TensorType;

use crate::{
    Capture, CudaExecError, Device, LinearInput, MatrixUse, Ops, Product, QuantizedRows, Uploader,
    error::Result,
};

/// Width of the row: a block of Q4_K.
const WIDTH: usize = 256;

/// Multiplies a row of weights that are all 3 with rows of ones and of twos, recorded once and replayed.
///
/// # Errors
/// The driver's, or [`CudaExecError::Failed`] with the computed value.
pub fn self_test(device: &Device) -> Result<()> {
    let ops = Ops::load(device)?;
    // All scales 1, minima 0, every weight 3.
    let mut row = vec![0u8; 144];
    row[0..2].copy_from_slice(&[0x00, 0x3c]);
    row[4..8].fill(1);
    row[12..16].fill(1);
    row[16..].fill(0x33);
    let mut uploader = Uploader::new(device);
    let usage = MatrixUse {
        is_table: false,
        is_factor: true,
        is_of_experts: false,
    };
    let matrix = uploader.upload(TensorType::Q4_K, [1, WIDTH], &row, usage)?;
    uploader.finish()?;

    let mut x = device.upload("the self-test", &[1.0f32; WIDTH])?;
    let mut rows = QuantizedRows::new(device, 1, WIDTH)?;
    let mut y = device.alloc::<f32>("the self-test", 1)?;
    let capture = Capture::begin(device)?;
    ops.quantize(1, WIDTH, x.view(), rows.view_mut())?;
    let input = LinearInput {
        n_rows: 1,
        floats: x.view(),
        quantized: Some(rows.view()),
    };
    let product = Product {
        matrix: &matrix,
        bias: None,
        output: y.view_mut(),
    };
    ops.linear(&input, &mut [product])?;
    let mut graph = capture.finish()?;
    for factor in [1.0f32, 2.0] {
        device.upload_to(&[factor; WIDTH], &x.view_mut())?;
        graph.replay()?;
        let found = device.download(y.view())?[0];
        let expected = factor * 3.0 * WIDTH as f32;
        // The row is quantized to bytes with a scale in f32: one rounding.
        let is_right = (found - expected).abs() <= 1e-4 * expected;
        if !is_right {
            return Err(CudaExecError::Failed {
                operation: "the self-test",
                reason: format!("{found} was computed instead of {expected}"),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokenmill_sim_driver::{Fault, SimOptions, Simulator};

    use super::*;
    use crate::driver::simulated;

    #[test]
    fn a_device_that_computes_passes_and_a_lost_one_does_not() {
        let simulator = Simulator::new(&SimOptions::default());
        self_test(&simulated(&simulator)).unwrap();
        simulator.inject(Fault::Lose { after: 0 });
        assert!(matches!(
            self_test(&simulated(&simulator)),
            Err(CudaExecError::Lost { .. })
        ));
    }
}
