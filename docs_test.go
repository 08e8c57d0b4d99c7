package sluice

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
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

// tried are the pages whose sh blocks TestQuickStart runs, in this order.
var tried = []string{"README.md", "docs/launchers.md", "docs/two-hosts.md", "docs/guide.md", "docs/event-files.md"}

// walked are the pages whose sh blocks the tests of internal/walkthrough run.
var walked = []string{"docs/containers.md", "docs/kubernetes.md", "docs/slurm.md"}

// What these pages have a newcomer type works as it stands, with this tree in place of the repository, and
// this host in place of two.
func TestQuickStart(t *testing.T) {
	need.Long(t)
	here, err := os.Getwd()
	require.NoError(t, err)
	all := pages(t)
	script := "set -e\nscp() { :; }\nssh() { shift 2; sh -c \"$*\"; }\n"
	for _, file := range tried {
		if file == "docs/guide.md" {
			script += "PATH=$PWD:$PATH; cd ../sluice\n"
		}
		for _, m := range fence.FindAllStringSubmatch(all[filepath.FromSlash(file)], -1) {
			switch {
			case m[1] == "sh":
				script += m[2]
			case m[1] == "python":
				script += "cat >filter.py <<'END'\n" + m[2] + "END\n"
			case file == "README.md":
				script += "cat >main.go <<'END'\n" + m[2] + "END\n"
			}
		}
	}
	script = strings.ReplaceAll(script, "hostA:4719", ranks.Free(t))
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=url."+here+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/sluice-hpc/sluice",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for rank := range 4 {
		line := fmt.Sprintf("rank %d of 4 has %d\n", rank, (rank+3)%4)
		require.Equal(t, 3, strings.Count(string(out), line), "%s", out)
		require.Contains(t, string(out), fmt.Sprintf("[%d] %s", rank, line))
	}
	require.Regexp(t, `(?m)^0 3 +shm `, string(out)) // of sluice info --job
	require.Regexp(t, `plot +residual.svg`, string(out))
	require.Contains(t, string(out), "rank 0 of 2 has 1\n")
	require.Contains(t, string(out), "rank 1 of 2 has 0\n")
}

// The programs sluice and bench have each subcommand and option that a page gives them.
func TestCommands(t *testing.T) {
	need.Full(t) // it links two programs
	bin := t.TempDir()
	for _, of := range []string{"./bench", "./cmd/sluice"} {
		out, err := exec.Command("go", "build", "-o", bin, of).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	help := func(args ...string) string {
		out, err := exec.Command(filepath.Join(bin, args[0]), append(args[1:], "--help")...).CombinedOutput()
		require.NoError(t, err, "%s: %s", args, out)
		return string(out)
	}
	option := regexp.MustCompile(`^--[a-z][a-z-]*`)
	name := regexp.MustCompile(`^([a-z]+[a-z-]*)(,[a-z,-]+)?$`)
	code := regexp.MustCompile("(?m)`[^`\n]+`|^    .+$|^[./]*(?:sluice|bench) .+$")
	prose := regexp.MustCompile(`^(a|of|the)$`) // of an error's text
	texts, found := map[string]string{}, 0
	for file, text := range pages(t) {
		for _, line := range code.FindAllString(text, -1) {
			line, _, _ = strings.Cut(strings.Trim(line, "`"), "#")
			var command []string // the program, and its subcommand
			words := strings.Fields(line)
			for i, word := range words {
				word = strings.Trim(word, "'\"()")
				switch base := filepath.Base(word); {
				case base == "sluice" || base == "bench":
					if i == 0 || !prose.MatchString(words[i-1]) {
						command = []string{base}
					}
				case word == "--" || strings.ContainsAny(word, "|;&<>"):
					command = nil
				case len(command) == 1:
					m := name.FindStringSubmatch(word)
					if m == nil {
						command = nil
						break
					}
					top := texts[command[0]]
					if top == "" {
						top = help(command[0])
						texts[command[0]] = top
					}
					require.Regexp(t, `(?m)^  (sluice )?`+m[1]+" ", top, "%s: %s", file, line)
					command = append(command, m[1])
				case len(command) == 2 && option.MatchString(word):
					key := strings.Join(command, " ")
					if texts[key] == "" {
						texts[key] = help(command...)
					}
					require.Regexp(t, " "+option.FindString(word)+`\b`, texts[key], "%s: %s", file, line)
					found++
				}
			}
		}
	}
	require.Greater(t, found, 50)
}

// The C of the page for users of MPI compiles.
func TestC(t *testing.T) {
	need.Program(t, "mpicc")
	const before = `#include <mpi.h>
enum { MAX = 1, LEN = 1, RESULT, TASK, STOP };
int rank, size, peer, n, found, next, tasks, left, right, rows, columns, steps;
void *buf; double *in, *out, *x, *u, *result, *task[1];
void compute(void);
MPI_Status status; MPI_Request request[2]; MPI_Comm cart, row; MPI_Datatype column;
`
	program := before
	blocks := 0
	for _, m := range fence.FindAllStringSubmatch(pages(t)[filepath.Join("docs", "from-mpi.md")], -1) {
		if m[1] == "c" {
			blocks++
			program += fmt.Sprintf("void block%d(void) {\n%s}\n", blocks, m[2])
		}
	}
	require.Greater(t, blocks, 5)
	cmd := exec.Command("mpicc", "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-")
	cmd.Stdin = strings.NewReader(program)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The page for users of QMP names only what the API of QMP has.
func TestQMPNames(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("qmp", "testdata", "names.txt"))
	require.NoError(t, err)
	names := strings.Fields(string(b))
	found := regexp.MustCompile(`\bQMP_\w*[a-z]\b`).FindAllString(pages(t)[filepath.Join("docs", "from-qmp.md")], -1)
	require.Greater(t, len(found), 40)
	for _, name := range found {
		require.Contains(t, names, name)
	}
}

// Every sh block of the pages is one that a test runs; lines of text are short.
func TestBlocks(t *testing.T) {
	for file, text := range pages(t) {
		if !slices.Contains(append(tried, walked...), filepath.ToSlash(file)) {
			require.NotContains(t, text, "```sh\n", "%s: no test runs it", file)
		}
		for _, line := range strings.Split(fence.ReplaceAllString(text, ""), "\n") {
			if !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") {
				require.LessOrEqual(t, utf8.RuneCountInString(line), 110, "%s: %s", file, line)
			}
		}
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

// TestTroubleshooting: each text of the page is one that the code has, and the page has the text of each
// error that packages export.
func TestTroubleshooting(t *testing.T) {
	others := regexp.MustCompile(`^(bench|examples|cmd|internal/test|internal/coll/colltest|verbs/verbstest)(/|$)`)
	hidden := regexp.MustCompile(`(^|/)internal/`)
	var texts, errs []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if others.MatchString(dir) && dir != "cmd/sluice" {
			return nil
		}
		exports := !hidden.MatchString(dir) && dir != "cmd/sluice" || dir == "internal/boot" || dir == "internal/proof"
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
					texts = append(texts, text)
				}
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if !exports || !strings.HasPrefix(name.Name, "Err") || i >= len(n.Values) {
						continue
					}
					if call, ok := n.Values[i].(*ast.CallExpr); ok && len(call.Args) == 1 {
						text, err := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
						require.NoError(t, err)
						errs = append(errs, text)
					}
				}
			}
			return true
		})
		return nil
	}))
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+)\\|").FindAllStringSubmatch(pages(t)[filepath.Join("docs", "troubleshooting.md")], -1) {
		for _, text := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if !strings.Contains(row[1], "from Go") {
				rows = append(rows, text[1])
			}
		}
	}
	require.Greater(t, len(rows), 90)
	for _, row := range rows {
		require.True(t, utf8.RuneCountInString(row) >= 8 || slices.Contains(errs, row), "%q is in too many texts", row)
		require.True(t, slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, row) }), "no text of the code has %q", row)
	}
	require.Greater(t, len(errs), 60)
	var lacking []string
	for _, err := range errs {
		if !slices.ContainsFunc(rows, func(row string) bool { return strings.Contains(err, row) }) {
			lacking = append(lacking, err)
		}
	}
	require.Empty(t, lacking, "of the page")
}

// Each mention of a page in any file leads to one.
func TestReferences(t *testing.T) {
	reference := regexp.MustCompile(`(?:^|[^/\w])(docs/[\w./-]*\w)`)
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == ".git" {
			return cmp.Or(err, filepath.SkipDir)
		} else if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range reference.FindAllSubmatch(b, -1) {
			found++
			_, missing := os.Stat(string(m[1]))
			require.NoError(t, missing, "in %s", path)
		}
		return err
	}))
	require.Greater(t, found, 30)
}

// The table of packages on the page on architecture has each package of the library.
func TestPackages(t *testing.T) {
	_, table, _ := strings.Cut(pages(t)[filepath.Join("docs", "architecture.md")], "\n## Packages\n")
	table, _, found := strings.Cut(table, "\n## ")
	require.True(t, found)
	list, err := exec.Command("go", "list", "./...").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(list))
	require.Greater(t, len(packages), 40)
	for _, p := range packages {
		if _, p, found = strings.Cut(p, "/sluice/"); found {
			require.Contains(t, table, "`"+p+"`")
		}
	}
}

// What the page on architecture quotes exists in the code, exported or not: package.Name,
// package.Type.Method, package.Type.field, and paths.
func TestArchitecture(t *testing.T) {
	known := map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || len(d.Name()) > 1 && d.Name()[0] == '.'):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			for _, name := range declared(decl) {
				known[file.Name.Name+"."+name] = true
			}
		}
		return nil
	}))
	quotes := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(fence.ReplaceAllString(pages(t)[filepath.Join("docs", "architecture.md")], ""), -1)
	require.Greater(t, len(quotes), 200)
	for _, m := range quotes {
		_, err := os.Stat(filepath.FromSlash(m[1]))
		require.True(t, known[m[1]] || err == nil, "the code has no %s", m[1])
	}
}

// declared returns the names that a declaration adds to its package: also methods and fields, behind
// their type.
func declared(decl ast.Decl) (names []string) {
	if f, ok := decl.(*ast.FuncDecl); ok {
		if f.Recv == nil {
			return []string{f.Name.Name}
		}
		for x := f.Recv.List[0].Type; ; {
			switch of := x.(type) {
			case *ast.StarExpr:
				x = of.X
			case *ast.IndexExpr:
				x = of.X
			case *ast.IndexListExpr:
				x = of.X
			case *ast.Ident:
				return []string{of.Name + "." + f.Name.Name}
			default:
				return nil
			}
		}
	}
	for _, spec := range decl.(*ast.GenDecl).Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for _, n := range s.Names {
				names = append(names, n.Name)
			}
		case *ast.TypeSpec:
			names = append(names, s.Name.Name)
			var members *ast.FieldList
			switch of := s.Type.(type) {
			case *ast.StructType:
				members = of.Fields
			case *ast.InterfaceType:
				members = of.Methods
			default:
				continue
			}
			for _, m := range members.List {
				for _, n := range m.Names {
					names = append(names, s.Name.Name+"."+n.Name)
				}
			}
		}
	}
	return names
}

// Each figure of README is one of the page that has all.
func TestFigures(t *testing.T) {
	all := pages(t)
	figure := regexp.MustCompile(`\d[\d.]* (?:ns|µs|ms|GB/s)`)
	_, table, found := strings.Cut(all["README.md"], "\n## How fast\n")
	require.True(t, found)
	figures := figure.FindAllString(table, -1)
	require.Greater(t, len(figures), 12)
	known := figure.FindAllString(all[filepath.Join("docs", "figures.md")], -1)
	require.Subset(t, known, figures)
}

// What users import begins, in its documentation, with a block of its most used calls.
func TestFirstCalls(t *testing.T) {
	calls := regexp.MustCompile(`(?s)^package .*?\n\n(?:\S[^\n]*\n)+\n((?:    [^\n]*\n)+)`)
	for _, p := range []string{"channel", "impi", "impi/startup", "qmp", "fanout", "fanout/pipeline", "exact", "verbs"} {
		out, err := exec.Command("go", "doc", "./"+p).Output()
		require.NoError(t, err, "%s", p)
		m := calls.FindStringSubmatch(string(out))
		require.NotNil(t, m, "%s", p)
		lines := strings.Count(m[1], "\n")
		require.True(t, 1 <= lines && lines <= 6, "%s: %s", p, m[1])
	}
}

// Every program of a page, a block that begins with package main, runs alone. README has one, and
// is short.
func TestPrograms(t *testing.T) {
	need.Full(t) // each is built
	all := pages(t)
	require.LessOrEqual(t, len(all["README.md"]), 9000)
	require.LessOrEqual(t, strings.Count(all["README.md"], "\n"), 85)
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

// TestWords: processes and things are not spoken of as persons.
func TestWords(t *testing.T) {
	person := regexp.MustCompile(`(?i)\b(whom?|nobody|whoever|somebody)\b`)
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".md"}, filepath.Ext(path)) || path == "docs_test.go" {
			return err
		}
		b, err := os.ReadFile(path)
		require.Empty(t, string(person.Find(b)), "%s", path)
		return err
	}))
}
