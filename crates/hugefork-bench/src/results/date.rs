//! The dates of results: UTC, ISO 8601, to the second.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time of the system's clock.
pub(crate) fn now() -> String {
    iso(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The time `seconds` after the beginning of 1970 as text, such as `2026-11-21T14:53:23Z`.
fn iso(seconds: u64) -> String {
    // SAFETY: `tm` consists of plain numbers and a pointer, for which all-zero bytes are a valid value.
    let mut date: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads a number and writes to a live `tm`.
    unsafe { libc::gmtime_r(&(seconds as libc::time_t), &mut date) };
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = date;
    format!("{:04}-{:02}-{tm_mday:02}T{tm_hour:02}:{tm_min:02}:{tm_sec:02}Z", tm_year + 1900, tm_mon + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_272_803, "2026-11-21T14:53:23Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(iso(seconds), date);
        }
    }

    #[test]
    fn now_is_a_date() {
        let now = now();
        assert!(now.len() == 20 && now.ends_with('Z') && now.as_str() > "2026", "{now}");
    }
}
