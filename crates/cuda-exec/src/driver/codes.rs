//! The meaning of the driver's codes for the device.
//!
//! Codes are numbers here, as in the driver's header (`cuda.h`): a driver that is newer than this crate may return any
//! number. Invariant: an unlisted code is never treated as harmless.

use super::api::Code;

/// There is no memory left.
pub(super) const OUT_OF_MEMORY: Code = 2;
/// Nothing has this name.
pub(super) const NOT_FOUND: Code = 500;

/// The queried work is not finished.
pub(super) const NOT_READY: Code = 600;

/// Meaning of a code for the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The context is unusable.
    Lost,
    /// The context refused a call and is unchanged.
    Refused,
    /// The code says neither.
    Unexpected,
}

/// Codes after which a context is unusable.
const LOST: [Code; 29] = [
    4,   // DEINITIALIZED
    201, // INVALID_CONTEXT
    214, // ECC_UNCORRECTABLE
    220, // NVLINK_UNCORRECTABLE
    226, // CONTAINED
    304, // OPERATING_SYSTEM
    700, // ILLEGAL_ADDRESS
    702, // LAUNCH_TIMEOUT
    709, // CONTEXT_IS_DESTROYED
    710, // ASSERT
    714, // HARDWARE_STACK_ERROR
    715, // ILLEGAL_INSTRUCTION
    716, // MISALIGNED_ADDRESS
    717, // INVALID_ADDRESS_SPACE
    718, // INVALID_PC
    719, // LAUNCH_FAILED
    721, // TENSOR_MEMORY_LEAK
    802, // SYSTEM_NOT_READY
    803, // SYSTEM_DRIVER_MISMATCH
    805, // MPS_CONNECTION_FAILED
    806, // MPS_RPC_FAILURE
    807, // MPS_SERVER_NOT_READY
    808, // MPS_MAX_CLIENTS_REACHED
    809, // MPS_MAX_CONNECTIONS_REACHED
    810, // MPS_CLIENT_TERMINATED
    46,  // DEVICE_UNAVAILABLE
    909, // TIMEOUT
    911, // EXTERNAL_DEVICE
    999, // UNKNOWN
];

/// Codes of calls that the driver refused without an effect.
const REFUSED: [Code; 9] = [
    1,             // INVALID_VALUE
    OUT_OF_MEMORY, // OUT_OF_MEMORY
    400,           // INVALID_HANDLE
    NOT_FOUND,     // NOT_FOUND
    600,           // NOT_READY
    701,           // LAUNCH_OUT_OF_RESOURCES
    801,           // NOT_SUPPORTED
    910,           // GRAPH_EXEC_UPDATE_FAILURE
    912,           // INVALID_CLUSTER_SIZE
];

/// Returns the meaning of a code; 0 is success.
pub(super) fn meaning_of(code: Code) -> Meaning {
    if code == 0 || REFUSED.contains(&code) || is_of_capture(code) || refusal_of_module(code).is_some() {
        Meaning::Refused
    } else if LOST.contains(&code) {
        Meaning::Lost
    } else {
        Meaning::Unexpected
    }
}

/// Returns whether an error from waiting for all work of a context shows that the context is lost. Only the error of a
/// stream under capture does not.
pub(super) fn says_lost(code: Code) -> bool {
    code != 0 && !is_of_capture(code)
}

/// Errors of stream capture, which end only the capture.
fn is_of_capture(code: Code) -> bool {
    (900..=908).contains(&code)
}

/// Why a driver does not load a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The driver has no compiler for PTX, or may not use it.
    NoCompiler,
    /// The driver rejects the module.
    Image,
}

/// Says whether a code is the refusal of a module.
pub(super) fn refusal_of_module(code: Code) -> Option<Refusal> {
    match code {
        // JIT_COMPILER_NOT_FOUND, JIT_COMPILATION_DISABLED
        221 | 223 => Some(Refusal::NoCompiler),
        // INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION
        200 | 209 | 218 | 222 => Some(Refusal::Image),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_header_says() {
        let check = |code, expected| assert_eq!(meaning_of(code), expected, "{code}");
        for refused in [0, 1, 2, 218, 221, 223, 500, 701, 900, 908] {
            check(refused, Meaning::Refused);
        }
        // The list includes codes that are newer than some headers.
        for lost in [201, 214, 226, 304, 700, 721, 802, 810, 909, 911, 999] {
            check(lost, Meaning::Lost);
        }
        for unexpected in [225, 811, 812, 913, 918, 4711, u32::MAX] {
            check(unexpected, Meaning::Unexpected);
        }
        assert!(says_lost(700) && says_lost(4711) && !says_lost(0) && !says_lost(900));
    }
}
