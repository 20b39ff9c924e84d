//! The built-in model: 3.5 million parameters, trained by this project, so that the program does something at once.

/// The file, Q8_0.
pub(crate) const DEMO_GGUF: &[u8] = include_bytes!("../assets/tokenmill-demo-Q8_0.gguf");

/// How the model is named on the command line.
pub(crate) const DEMO_NAME: &str = "demo";
