//! The detection of instruction sets, on known processors.

use tokenmill_quant::CpuFeatures;

/// `TOKENMILL_TEST_PATHS` names them if the processor is known, for instance an emulated one. Without it only
/// that scalar code comes first is known.
#[test]
fn paths_are_those_of_the_processor() {
    let paths: Vec<String> = CpuFeatures::each_path()
        .map(|features| features.to_string())
        .collect();
    assert_eq!(paths[0], "scalar");
    if let Ok(expected) = std::env::var("TOKENMILL_TEST_PATHS") {
        assert_eq!(paths.join(" "), expected);
    }
}
