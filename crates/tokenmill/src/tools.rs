//! Tools that a model may call: the parts of [`ToolCall`](crate::ToolCall) and [`ToolChoice`](crate::ToolChoice).

pub use tokenmill_text::calls::{CallFormError, Part, ToolSet, takes_objects};
