//! `wheellock doctor`: checks a server for dangers to locks and causes of delay.

use std::error::Error;
use std::fmt::Write as _;

use wheellock::{CheckState, Diagnosis};

use crate::arguments::Doctor;
use crate::exit;
use crate::output::{printable, say};
use crate::server;

/// Runs and prints the checks, and returns the exit code.
pub(crate) fn doctor(doctor: &Doctor) -> Result<u8, Box<dyn Error>> {
    let mut server = doctor.server.clone();
    server.redis = doctor.url.clone().or(server.redis);
    let builder = server::builder(&server)?.key_prefix(&doctor.prefix);
    let diagnosis = builder.build().and_then(|client| client.diagnose());
    let diagnosis = diagnosis.unwrap_or_else(|error| Diagnosis::from_error(&error));
    say(&if doctor.json { serde_json::to_string(&diagnosis)? } else { table(&diagnosis) })?;
    Ok(match diagnosis.state {
        CheckState::Ok | CheckState::NotChecked => exit::SUCCESS,
        CheckState::Warn => exit::WARNED,
        _ => exit::UNFIT,
    })
}

/// Formats a line for each check, with any repair on the next line.
fn table(diagnosis: &Diagnosis) -> String {
    let names = diagnosis.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut lines = String::new();
    for check in &diagnosis.checks {
        let state = match check.state {
            CheckState::NotChecked => "-".to_owned(),
            state => state.to_string(),
        };
        // Writing to a `String` never fails.
        let found = printable(&check.found);
        writeln!(lines, "{state:<4}  {:<names$}  {found}", check.name).ok();
        if let Some(repair) = &check.repair {
            writeln!(lines, "      {:<names$}  -> {}", "", printable(repair)).ok();
        }
    }
    lines.truncate(lines.trim_end().len());
    lines
}
