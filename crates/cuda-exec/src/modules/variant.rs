//! [`early_variant`]: a module's PTX for GPUs on which a launch may begin before earlier ones are done.
//!
//! The archive has one text of each module. Instructions that only newer GPUs have are marked comments in it, so that older
//! GPUs get the text unchanged. Invariant: except for these instructions and the two lines that name the version and the
//! architecture, both texts are the same. Modules for only one architecture name their own, and keep those lines.

use std::{borrow::Cow, collections::BTreeSet};

/// Lowest compute capability with launches that may begin before earlier ones are done.
pub(crate) const EARLY_CAPABILITY: (u32, u32) = (9, 0);

/// Prefix of comments with instructions of newer GPUs (`kernels/early.cuh`).
const MARK: &str = "//early ";
/// Lines of the archive's texts, and their replacements when the marked instructions are used: these came with PTX 7.8 for
/// sm_90.
const HEADER: [[&str; 2]; 2] = [
    ["\n.version 7.4\n", "\n.version 7.8\n"],
    ["\n.target sm_80\n", "\n.target sm_90\n"],
];

/// Returns the PTX for GPUs of compute capability 9.0 and newer; `None` if it is the same as for all GPUs.
pub fn early_variant(ptx: &str) -> Option<String> {
    if !ptx.contains(MARK) {
        return None;
    }
    let text = ptx.replace(MARK, "");
    Some(
        HEADER
            .iter()
            .fold(text, |text, [old, new]| text.replacen(old, new, 1)),
    )
}

/// Returns the PTX of a module for a compute capability, from its text in the archive.
pub fn text_for(ptx: &str, capability: (u32, u32)) -> Cow<'_, str> {
    let early = (capability >= EARLY_CAPABILITY).then(|| early_variant(ptx));
    early.flatten().map_or(Cow::Borrowed(ptx), Cow::Owned)
}

/// Lists the kernels of a PTX text that wait for earlier launches.
pub fn waiting_kernels(ptx: &str) -> BTreeSet<String> {
    let mut waiting = BTreeSet::new();
    let mut kernel = "";
    for line in ptx.lines() {
        if let Some((_, declared)) = line.split_once(".entry ") {
            kernel = declared.split('(').next().unwrap_or_default().trim();
        } else if line.trim_start().starts_with("griddepcontrol.wait") {
            waiting.insert(kernel.to_owned());
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_away_and_the_header_follows() {
        let ptx = "//\n.version 7.4\n.target sm_80\n.visible .entry a(\n)\n{\n\t//early griddepcontrol.wait;\n\tret;\n}\n\
                   .visible .entry b()\n{\n\tret;\n}\n";
        let early = early_variant(ptx).unwrap();
        assert_eq!(
            early,
            "//\n.version 7.8\n.target sm_90\n.visible .entry a(\n)\n{\n\tgriddepcontrol.wait;\n\tret;\n}\n\
             .visible .entry b()\n{\n\tret;\n}\n"
        );
        assert_eq!(waiting_kernels(&early), BTreeSet::from(["a".to_owned()]));
        assert_eq!(waiting_kernels(ptx), BTreeSet::new());
        assert_eq!(early_variant(".version 7.4\n.target sm_80\n"), None);
    }

    /// The time between launches matters only for a step that is one chain of early launches.
    #[test]
    fn every_kernel_of_a_decode_step_waits() {
        let check = |module: &str, expected: &[&str]| {
            let early = early_variant(&super::super::ptx(module).unwrap()).unwrap_or_default();
            let waiting = waiting_kernels(&early);
            for kernel in expected {
                assert!(waiting.contains(*kernel), "{module}: {kernel}");
            }
            let n_kernels = early.matches(".visible .entry ").count();
            assert!(
                early.contains(".target sm_90") && n_kernels >= expected.len(),
                "{module}"
            );
        };
        check(
            "norm",
            &[
                "add_norm",
                "add_norm_held",
                "add_norm_held_wide",
                "norm_heads",
                "norm_wide_heads",
                "quantize_rows",
            ],
        );
        check("rope_kv", &["rope_kv_f16", "rope_kv_f32"]);
        check(
            "attention_decode",
            &[
                "attention_f16_d64",
                "attention_f16_d128",
                "attention_f32_g4",
                "turn_attention_f16_d64",
                "turn_attention_f16_d128",
            ],
        );
        for module in ["attention_shared", "attention_rest"] {
            let kernels = ["64", "128"].map(|dim| format!("{module}_f16_d{dim}"));
            check(module, &kernels.each_ref().map(String::as_str));
        }
        check("argmax", &["argmax_partial", "argmax_combine"]);
        check(
            "sample",
            &[
                "sample_parts",
                "sample_weights",
                "sample_candidates",
                "sample_rows",
            ],
        );
        check("elementwise", &["activation"]);
        check(
            "route",
            &["route_rows", "sort_choices", "weigh_choices", "combine"],
        );
        for format in ["q4_k", "q6_k", "q8_0", "f16"] {
            check(
                &format!("matvec_{format}"),
                &["matvec_m1", "matvec_m8", "matvec_gated_m1"],
            );
            check(&format!("matmul_{format}"), &["matmul_n64"]);
            check(&format!("experts_{format}"), &["experts_m1", "experts_n16"]);
        }
        for format in ["q4_k", "q5_k", "q6_k"] {
            check(&format!("matvec_{format}"), &["matvec_m16"]);
            let bands = [
                "matmul_band_n16",
                "matmul_band_n32",
                "matmul_band_n64",
                "matmul_low_band_n16",
                "matmul_low_band_n32",
                "matmul_gated_n16",
                "matmul_gated_n32",
                "matmul_gated_n64",
                "matmul_split_n64",
            ];
            check(&format!("matmul_{format}"), &bands);
            let halves = ["half_band_n64", "half_gated_n64", "half_split_n64"];
            check(&format!("matmul_halves_{format}"), &halves);
            let wide = [
                "wide_band_n16",
                "wide_band_n32",
                "wide_band_n64",
                "wide_band_n128",
                "wide_band_n256",
                "wide_gated_n16",
                "wide_gated_n32",
                "wide_gated_n64",
                "wide_gated_n128",
                "wide_gated_n256",
            ];
            check(&format!("matmul_wide_{format}"), &wide);
        }
        check("matmul_f32", &["matmul_n8", "matmul_n64"]);
        check("halves", &["halve_rows"]);
        check("wide_rows", &["wide_tiles"]);
        for format in ["f16", "bf16"] {
            let bands = [
                "matmul_band_n16",
                "matmul_band_n32",
                "matmul_band_n64",
                "matmul_low_band_n16",
                "matmul_low_band_n32",
            ];
            check(&format!("matmul_{format}"), &bands);
        }
        check("matvec_q4_k_q6_k", &["matvec_pair_m1", "matvec_pair_m8"]);
    }
}
