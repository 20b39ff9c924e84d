//! [`size_label`]: the size of a model, in the notation used in files.
//!
//! Source: gguf-py, `utility.py` and `gguf_writer.py`, for the parameters that count.

use tokenmill_gguf::TensorInfo;

/// Returns the number of parameters of a model, or of its experts and their shared part: `7.2B`, `8x7B`.
/// `None` if there are none.
pub(crate) fn size_label(tensors: &[TensorInfo]) -> Option<String> {
    let (mut total, mut in_use) = (0_usize, 0_usize);
    let (mut n_experts, mut n_tensors) = (0_usize, 0_usize);
    for tensor in tensors {
        let n = tensor.n_elements();
        total += n;
        // A tensor of experts counts as a single expert.
        let is_bias = tensor.name.contains(".bias");
        let count = (tensor.name.contains("_exps.") && tensor.dims.len() > 2)
            .then(|| tensor.dims[if is_bias { 1 } else { 2 }]);
        match count {
            Some(count) => {
                in_use += n / count.max(1);
                n_experts += count;
                n_tensors += 1;
            }
            None => in_use += n,
        }
    }
    match n_experts.checked_div(n_tensors) {
        Some(n_experts) if n_experts > 0 => Some(format!("{n_experts}x{}", in_words(in_use))),
        _ => (total > 0).then(|| in_words(total)),
    }
}

/// Formats a count with at least two digits.
fn in_words(n: usize) -> String {
    let n = n as f64;
    let (scale, suffix) = match n {
        n if n > 1e12 => (1e-12, 'T'),
        n if n > 1e9 => (1e-9, 'B'),
        n if n > 1e6 => (1e-6, 'M'),
        _ => (1e-3, 'K'),
    };
    let scaled = n * scale;
    let whole = format!("{scaled:.0}");
    let n_decimals = 2_usize.saturating_sub(whole.trim_start_matches('0').len());
    format!("{scaled:.n_decimals$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_two_digits() {
        for (n, expected) in [
            (133_000, "133K"),
            (1_235_814_432, "1.2B"),
            (70_553_706_496, "71B"),
            (500, "0.50K"),
            (9_960_000, "10M"),
        ] {
            assert_eq!(in_words(n), expected);
        }
    }
}
