package qmp

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNames: the table of the package documentation has every name of testdata/names.txt,
// which are those of the 1.2 document, C and C++, and of the C API of version 2, and no
// other; and what it names in Go is there.
func TestNames(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "names.txt"))
	require.NoError(t, err)
	names := strings.Fields(string(b))
	require.Greater(t, len(names), 250)
	require.True(t, slices.IsSorted(names))

	doc, exported := read(t)
	_, table, found := strings.Cut(doc, "\n# Names\n")
	require.True(t, found)
	var listed []string
	words := []string{"func", "int", "uint64", "float32", "float64", "bool", "true", "false"}
	columns := regexp.MustCompile(`^\t(\S+) {2,}(\S.*)$`)
	for line := range strings.Lines(table) {
		m := columns.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			require.False(t, strings.HasPrefix(line, "\t"), "%q", line)
			continue
		}
		listed = append(listed, m[1])
		for name := range strings.SplitSeq(m[2], ", ") {
			require.True(t, exported[name] || slices.Contains(words, name), "%s of %s", name, m[1])
		}
	}
	slices.Sort(listed)
	require.Equal(t, names, listed)
}

// read returns the package comment, and what the package exports: functions, types,
// constants, and methods as Type.Method.
func read(t *testing.T) (doc string, exported map[string]bool) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	exported = map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		if f.Doc != nil {
			doc += f.Doc.Text()
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				exported[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						exported[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							exported[n.Name] = true
						}
					}
				}
			}
		}
	}
	return doc, exported
}

// receiver is the type of a method with a dot, else empty.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	t := d.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	return t.(*ast.Ident).Name + "."
}
