//! The slot of a run: a time as text, computed by every machine on its own.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

/// Formats `now` in `zone`, or in UTC. An error if `format` or `zone` is wrong, or if the slot is
/// empty.
pub(crate) fn slot(format: &str, zone: Option<&str>, now: Timestamp) -> Result<String, String> {
    let zone = match zone {
        None => TimeZone::UTC,
        Some(name) => {
            TimeZone::get(name).map_err(|error| format!("--slot-zone {name}: {error}"))?
        }
    };
    let slot = strtime::format(format, &now.to_zoned_datetime(zone))
        .map_err(|error| format!("--slot {format}: {error}"))?;
    if slot.is_empty() { Err("--slot: the slot is empty".to_owned()) } else { Ok(slot) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn a_slot_is_a_time_of_utc_unless_a_zone_is_given() {
        let now = at("2026-11-28T23:30:59Z");
        assert_eq!(slot("%F %H", None, now).unwrap(), "2026-11-28 23");
        assert_eq!(slot("%F %H", Some("Europe/Berlin"), now).unwrap(), "2026-11-29 00");
        assert_eq!(slot("release-2.1", None, now).unwrap(), "release-2.1");
    }

    #[test]
    fn an_offset_tells_the_two_hours_of_a_night_apart() {
        let [first, second] = [at("2026-10-25T00:30:00Z"), at("2026-10-25T01:30:00Z")];
        let berlin = |format, now| slot(format, Some("Europe/Berlin"), now).unwrap();
        assert_eq!(berlin("%F %H", first), berlin("%F %H", second));
        assert_eq!(berlin("%F %H%:z", first), "2026-10-25 02+02:00");
        assert_eq!(berlin("%F %H%:z", second), "2026-10-25 02+01:00");
    }

    #[test]
    fn what_is_no_format_or_no_zone_is_named() {
        let now = at("2026-11-28T23:30:59Z");
        for wrong in ["%", "%F %!"] {
            let error = slot(wrong, None, now).unwrap_err();
            assert!(error.starts_with(&format!("--slot {wrong}: ")), "{error}");
        }
        let error = slot("%F", Some("Mars/Olympus"), now).unwrap_err();
        assert!(error.starts_with("--slot-zone Mars/Olympus: "), "{error}");
        assert!(slot("", None, now).unwrap_err().contains("empty"));
    }
}
