//! Reads credentials and settings from the files of Amazon's tools, `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Keys of the credentials.
const KEYS: [&str; 3] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
];
/// Other keys, the setting of a store that each sets, and the variables that set the same.
const OTHERS: [(&str, &str, &[&str]); 2] = [
    (
        "region",
        "aws_region",
        &["aws_region", "aws_default_region"],
    ),
    (
        "endpoint_url",
        "aws_endpoint_url",
        &["aws_endpoint_url", "aws_endpoint", "aws_endpoint_url_s3"],
    ),
];

/// Reads the settings that are not in `known` (those set by variables) from the profile that `AWS_PROFILE` names,
/// or from `default`. Missing files and unknown lines are ignored.
pub(crate) fn options(
    known: &[(String, String)],
    variable: &dyn Fn(&str) -> Option<PathBuf>,
) -> Vec<(String, String)> {
    let file = |name: &str, usual: &str| {
        let usual = || Some(variable("HOME")?.join(".aws").join(usual));
        let path = variable(name).or_else(usual)?;
        std::fs::read_to_string(path).ok()
    };
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default();
    let config = file("AWS_CONFIG_FILE", "config").unwrap_or_default();
    let profile = variable("AWS_PROFILE")
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|| "default".to_owned());
    merge_profile(known, &profile, &credentials, &config)
}

fn merge_profile(
    known: &[(String, String)],
    profile: &str,
    credentials: &str,
    config: &str,
) -> Vec<(String, String)> {
    // The credentials file has precedence over the configuration file.
    let mut found = section(config, &format!("profile {profile}"));
    if profile == "default" {
        found.extend(section(config, profile));
    }
    found.extend(section(credentials, profile));
    let is_known = |name: &str| known.iter().any(|(known, _)| known == name);
    let mut options = Vec::new();
    // The parts of a credential are never mixed from different sources.
    if !KEYS.iter().any(|name| is_known(name)) {
        let keys = KEYS.iter().filter_map(|name| found.get_key_value(*name));
        options.extend(keys.map(|(name, value)| (name.clone(), value.clone())));
    }
    for (name, setting, same) in OTHERS {
        if let Some(value) = found.get(name)
            && !same.iter().any(|name| is_known(name))
        {
            options.push((setting.to_owned(), value.clone()));
        }
    }
    options
}

/// Returns the keys and values of a section of an INI file.
fn section(text: &str, title: &str) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let mut is_in = false;
    for line in text.lines() {
        // Indented lines belong to a nested setting and are skipped, as are comments.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(name) = line.trim().strip_prefix('[') {
            is_in = name
                .strip_suffix(']')
                .is_some_and(|name| name.trim() == title);
        } else if let Some((name, value)) = line.split_once('=')
            && is_in
        {
            lines.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "\
        [default]\naws_access_key_id = first\naws_secret_access_key=one=\n# aws_session_token = x\n\n\
        [ other ]\naws_access_key_id = second\nAWS_SECRET_ACCESS_KEY = two\naws_session_token = three\n";
    const CONFIG: &str = "\
        [default]\nregion = eu-west-1\ns3 =\n  region = wrong\n\
        [profile other]\nregion = us-east-2\nendpoint_url = http://127.0.0.1:9000\naws_access_key_id = late\n";

    #[test]
    fn a_profile_provides_settings_that_variables_do_not() {
        let check = |profile: &str, known: &[&str], expected: &[(&str, &str)]| {
            let known: Vec<_> = known
                .iter()
                .map(|name| ((*name).to_owned(), String::new()))
                .collect();
            let options = merge_profile(&known, profile, CREDENTIALS, CONFIG);
            let expected: Vec<_> = expected
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            assert_eq!(options, expected, "{profile} {known:?}");
        };
        let region = ("aws_region", "eu-west-1");
        let keys = [
            ("aws_access_key_id", "first"),
            ("aws_secret_access_key", "one="),
        ];
        check("default", &[], &[keys[0], keys[1], region]);
        check("default", &["aws_region"], &keys);
        check("default", &["aws_default_region"], &keys);
        check("default", &["aws_access_key_id"], &[region]);
        check(
            "other",
            &[],
            &[
                ("aws_access_key_id", "second"),
                ("aws_secret_access_key", "two"),
                ("aws_session_token", "three"),
                ("aws_region", "us-east-2"),
                ("aws_endpoint_url", "http://127.0.0.1:9000"),
            ],
        );
        check(
            "other",
            &["aws_secret_access_key", "aws_endpoint"],
            &[("aws_region", "us-east-2")],
        );
        check("absent", &[], &[]);
    }

    #[test]
    fn files_are_found_by_variables_or_in_the_home_folder() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(home.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        let elsewhere = home.path().join("config");
        std::fs::write(&elsewhere, CONFIG).unwrap();
        let variable = |name: &str| match name {
            "HOME" => Some(home.path().to_owned()),
            "AWS_CONFIG_FILE" => Some(elsewhere.clone()),
            _ => None,
        };
        assert_eq!(options(&[], &variable).len(), 3);
        assert_eq!(options(&[], &|_| None), []);
    }
}
