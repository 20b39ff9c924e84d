//! Anthropic's API: request types of `/v1/messages` and `/v1/messages/count_tokens`.

pub mod blocks;
pub mod messages;
mod tool_kinds;
