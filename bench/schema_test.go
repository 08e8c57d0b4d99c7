package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// compiledSchema is the document that "bench schema" prints.
var compiledSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaDocument))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("schema.json")
})

// validate holds output to the schema.
func validate(t *testing.T, out []byte) {
	t.Helper()
	s, err := compiledSchema()
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
	require.NoError(t, err)
	require.NoError(t, s.Validate(v))
}

// The document has the fields of the types, each with its type, and says which are
// always there.
func TestSchema(t *testing.T) {
	t.Parallel()
	type object struct {
		Properties map[string]map[string]any
		Required   []string
		Defs       map[string]object `json:"$defs"`
	}
	var doc object
	require.NoError(t, json.Unmarshal(schemaDocument, &doc))
	seen := map[string]bool{}
	var same func(o object, typ reflect.Type)
	// of follows a type to the property that describes it.
	var of func(p map[string]any, typ reflect.Type, where string)
	of = func(p map[string]any, typ reflect.Type, where string) {
		switch typ.Kind() {
		case reflect.Pointer:
			of(p, typ.Elem(), where)
		case reflect.Slice:
			require.Contains(t, p["type"], "array", where)
			of(p["items"].(map[string]any), typ.Elem(), where)
		case reflect.Map:
			require.Equal(t, "object", p["type"], where)
		case reflect.Struct:
			name, found := strings.CutPrefix(p["$ref"].(string), "#/$defs/")
			require.True(t, found, where)
			require.Equal(t, typ.Name(), name, where)
			require.Contains(t, doc.Defs, name)
			same(doc.Defs[name], typ)
			seen[name] = true
		default:
			if p["const"] != nil {
				require.Equal(t, schema, p["const"])
				return
			}
			want := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number", reflect.Bool: "boolean"}[typ.Kind()]
			require.Equal(t, want, p["type"], where)
			require.NotEmpty(t, want, where)
		}
	}
	same = func(o object, typ reflect.Type) {
		var required []string
		fields := 0
		for i := range typ.NumField() {
			tag := typ.Field(i).Tag.Get("json")
			if tag == "" {
				continue
			}
			name, omit, _ := strings.Cut(tag, ",")
			where := typ.Name() + "." + name
			require.Contains(t, o.Properties, name, where)
			of(o.Properties[name], typ.Field(i).Type, where)
			if omit == "" {
				required = append(required, name)
			}
			fields++
		}
		require.Len(t, o.Properties, fields, "%s: the document has others", typ.Name())
		require.Equal(t, required, o.Required, typ.Name())
	}
	same(doc, reflect.TypeFor[Report]())
	require.Len(t, seen, len(doc.Defs), "definitions that nothing refers to")
	require.Equal(t, schemaDocument, output(t, "schema"))
}

// What is not of the schema is found.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	s, err := compiledSchema()
	require.NoError(t, err)
	for name, text := range map[string]string{
		"another version": `{"schema":"sluice-bench/2","environment":{},"results":[]}`,
		"no results":      `{"schema":"sluice-bench/1","environment":{"time":"","bench":"","cpu":"","cpus":1,"os":"","arch":"","go":"","gomaxprocs":1}}`,
		"a bare result":   `{"schema":"sluice-bench/1","environment":{"time":"","bench":"","cpu":"","cpus":1,"os":"","arch":"","go":"","gomaxprocs":1},"results":[{}]}`,
	} {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		require.NoError(t, err)
		require.Error(t, s.Validate(v), name)
	}
}
