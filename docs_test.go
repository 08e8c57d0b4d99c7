package sluice

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// pages returns the Markdown of the repository by file.
func pages(t *testing.T) map[string]string {
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			all[f] = string(b)
		}
	}
	require.Contains(t, all, "README.md")
	require.Contains(t, all, filepath.Join("docs", "guide.md"))
	return all
}

var (
	fence   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile("[^a-z0-9 _-]")
)

// Every link of a page to a file leads to one, and to a heading of it where it says so.
func TestLinks(t *testing.T) {
	all := pages(t)
	for file, text := range all {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s: link to %s", file, m[1])
			if anchor == "" {
				continue
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(all[target], ""), -1) {
				anchors = append(anchors, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
			}
			require.Contains(t, anchors, anchor, "%s: link to %s", file, m[1])
		}
	}
}

// What README has a newcomer type works as it stands, with this tree in place of the repository.
func TestQuickStart(t *testing.T) {
	need.Long(t)
	here, err := os.Getwd()
	require.NoError(t, err)
	script := "set -e\n"
	for _, m := range fence.FindAllStringSubmatch(pages(t)["README.md"], -1) {
		if m[1] == "sh" {
			script += m[2]
		} else {
			script += "cat >main.go <<'END'\n" + m[2] + "END\n"
		}
	}
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=url."+here+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/sluice-hpc/sluice",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for rank := range 4 {
		require.Contains(t, string(out), fmt.Sprintf("rank %d of 4 has %d\n", rank, (rank+3)%4))
	}
}

// All other Go of the pages stands in examples/snippets, so that it compiles.
func TestSnippets(t *testing.T) {
	files, err := filepath.Glob("examples/snippets/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var code strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		code.Write(b)
	}
	for file, text := range pages(t) {
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			if m[1] != "go" || strings.HasPrefix(m[2], "package main\n") {
				continue
			}
			indented := regexp.MustCompile("(?m)^(.)").ReplaceAllString(m[2], "\t$1")
			require.Contains(t, code.String(), "\n"+indented, "%s", file)
		}
	}
}

// The texts of the page on errors are those of the code.
func TestTroubleshooting(t *testing.T) {
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		code.Write(b)
		return err
	}))
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(pages(t)[filepath.Join("docs", "troubleshooting.md")], -1)
	require.Greater(t, len(rows), 20)
	for _, row := range rows {
		require.True(t, strings.Contains(code.String(), row[1]), "no error or log line says %q", row[1])
	}
}

// Every program of a page, a block that begins with package main, runs alone. README has one, and
// is short.
func TestPrograms(t *testing.T) {
	all := pages(t)
	require.LessOrEqual(t, len(all["README.md"]), 9000)
	programs := 0
	for file, text := range all {
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			if m[1] != "go" || !strings.HasPrefix(m[2], "package main\n") {
				continue
			}
			programs++
			require.LessOrEqual(t, strings.Count(m[2], "\n"), 25, "%s", file)
			source := filepath.Join(t.TempDir(), "main.go")
			require.NoError(t, os.WriteFile(source, []byte(m[2]), 0o600))
			out, err := exec.Command("go", "run", source).CombinedOutput()
			require.NoError(t, err, "%s: %s", file, out)
			require.NotEmpty(t, out)
		}
	}
	require.Positive(t, programs)
}
