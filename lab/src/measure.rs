//! Parts that all measuring commands share: a measurement is a subject, a loop over it, a record of its figures, and a report of the record.
//!
//! | part | has |
//! |---|---|
//! | `subject` | a loaded model's sequences: their pages, tokens and steps |
//! | `rounds` | sides that take turns, and the spread of their samples |
//! | `record` | files of figures, with the machine and the commit |
//! | `deviation` | the distance of results from expected ones, and what rounding explains |
//! | `report` | tables |
//!
//! A command then only names what runs and which figures count. Invariant: no part knows a command.

pub(crate) mod deviation;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod subject;
